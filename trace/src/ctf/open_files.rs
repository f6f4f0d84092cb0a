//! The stream files of a folder. Only a bounded number of these files are open at a time.
//!
//! A session has a file for each client and each thread that traces, while a VMM needs its descriptors for
//! other purposes, too. If there is no room for a further file, the file that was used least recently is
//! closed. This file is opened again for its next packet.

use hypertrace_format::folder::{Folder, check_size, inode as inode_of, set_len, write_at};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Device and inode of a file. A later file of the same name has other numbers.
pub(super) type Inode = (u64, u64);

#[derive(Debug)]
struct Open {
    inode: Inode,
    file: OwnedFd,
    /// Sequence number of the file's last use.
    used: u64,
}

/// The folder of a trace, and its open stream files.
#[derive(Debug)]
pub(super) struct OpenFiles {
    folder: Folder,
    /// Maximum number of open files, at least one.
    most: usize,
    open: Vec<Open>,
    uses: u64,
}

impl OpenFiles {
    /// Returns the files of a trace in this folder. At most `most` of the files are open at a time.
    pub fn new(folder: Folder, most: usize) -> OpenFiles {
        OpenFiles { folder, most: most.max(1), open: Vec::new(), uses: 0 }
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Calls `each` with every descriptor.
    pub fn each_descriptor(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        each(self.folder.as_fd());
        self.open.iter().for_each(|open| each(open.file.as_fd()));
    }

    /// Changes the folder's path for messages, after the folder was renamed.
    pub fn moved(&mut self, path: PathBuf) {
        self.folder = self.folder.clone().moved(path);
    }

    /// Creates a sparse file of this length that begins with `head`. The file gets its name when it is
    /// complete. If a step fails, no part of the file is left.
    pub fn create(&mut self, name: &str, len: u64, head: &[u8]) -> io::Result<Inode> {
        check_size(len)?;
        self.make_room();
        let hidden = format!(".{name}");
        let make = || -> io::Result<(Inode, OwnedFd)> {
            let file = self.folder.new_file(&hidden)?;
            set_len(&file, len)?;
            write_at(&file, head, 0)?;
            let inode = inode_of(&rustix::fs::fstat(&file)?);
            self.folder.rename(&hidden, name)?;
            Ok((inode, file))
        };
        let (inode, file) = make().inspect_err(|_| {
            let _ = self.folder.remove(&hidden);
        })?;
        self.keep(inode, file);
        Ok(inode)
    }

    /// Writes all of `bytes`.
    pub fn write(&mut self, name: &str, inode: Inode, bytes: &[u8], at: u64) -> io::Result<()> {
        write_at(self.get(name, inode)?, bytes, at)
    }

    /// If `end` is given, first cuts the file to this length. Then closes the file.
    pub fn close(&mut self, name: &str, inode: Inode, end: Option<u64>) -> io::Result<()> {
        let cut = match end {
            Some(end) => self.get(name, inode).and_then(|file| set_len(file, end)),
            None => Ok(()),
        };
        self.open.retain(|open| open.inode != inode);
        cut
    }

    fn get(&mut self, name: &str, inode: Inode) -> io::Result<&OwnedFd> {
        self.uses += 1;
        // A search is fast enough for a few dozen files.
        if let Some(index) = self.open.iter().position(|open| open.inode == inode) {
            let open = &mut self.open[index];
            open.used = self.uses;
            return Ok(&open.file);
        }
        self.make_room();
        let (file, stat) = self.folder.file(name, OFlags::RDWR)?;
        if inode_of(&stat) != inode {
            let why = "another file has its name now";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(self.keep(inode, file))
    }

    fn keep(&mut self, inode: Inode, file: OwnedFd) -> &OwnedFd {
        let index = self.open.len();
        self.open.push(Open { inode, file, used: self.uses });
        &self.open[index].file
    }

    /// Closes the files that were used least recently, until there is room for a further file.
    fn make_room(&mut self) {
        while self.open.len() >= self.most {
            let oldest = self.open.iter().zip(0..).min_by_key(|(open, _)| open.used);
            let Some((_, index)) = oldest else { break };
            self.open.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_format::folder::Share;

    fn files(dir: &tempfile::TempDir, most: usize) -> OpenFiles {
        OpenFiles::new(Folder::open(dir.path(), Share::Owner).unwrap(), most)
    }

    #[test]
    fn files_beyond_the_bound_are_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = files(&dir, 2);
        let made: Vec<(String, Inode)> = (0..5u8)
            .map(|n| {
                let name = format!("f{n}");
                let inode = files.create(&name, 100, &[n]).unwrap();
                (name, inode)
            })
            .collect();
        for (n, (name, inode)) in (0..).zip(&made) {
            files.write(name, *inode, &[0xa0 + n], 1).unwrap();
            assert!(files.open.len() <= 2);
        }
        for (n, (name, inode)) in (0..5u8).zip(&made) {
            files.close(name, *inode, Some(2)).unwrap();
            assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), [n, 0xa0 + n]);
        }
        assert!(files.open.is_empty());
    }

    #[test]
    fn a_file_that_was_replaced_meanwhile_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = files(&dir, 1);
        let inode = files.create("f", 100, b"head").unwrap();
        files.create("g", 100, b"head").unwrap();
        let path = dir.path().join("f");
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(files.write("f", inode, b"text", 0).is_err());
        std::fs::rename(&victim, &path).unwrap();

        let failed = files.write("f", inode, b"text", 0).unwrap_err();

        assert!(failed.to_string().contains("another file"), "{failed}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
