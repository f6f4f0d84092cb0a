//! Files that are written whole or not at all: pages for a browser, and exports.

use crate::Usage;
use anyhow::{Context, Result};
use hypertrace_format::folder::{Folder, Share, check_size, inode, open_regular, read_at};
use rustix::fs::{CWD, OFlags, fstat};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// File of a page that a command writes for a browser.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// First bytes of the page. Only files that begin with these bytes are replaced.
    pub mark: &'static str,
    /// Option that names the file.
    pub option: &'static str,
    /// Prefix of the file while it is written.
    pub prefix: &'static str,
}

impl PageFile {
    /// Checks that the page may be written, before the work is done.
    ///
    /// # Errors
    /// If `path` is something other than an older page.
    pub fn check(&self, path: &Path) -> Result<()> {
        self.may_replace(path).map(|_| ())
    }

    /// Returns whether there is an older page to replace.
    fn may_replace(&self, path: &Path) -> Result<bool> {
        let refuse = |what: &str| {
            let why = format!("{}: {} {what}: give another name", self.option, path.display());
            Err(Usage(why).into())
        };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => refuse("is not a file"),
            Ok(_) => {
                let beginning = beginning(path, self.mark)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                match beginning == self.mark.as_bytes() {
                    true => Ok(true),
                    false => refuse("exists and is not a page of this command"),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => match check_folder(path) {
                Ok(()) => Ok(false),
                Err(why) => {
                    let why = format!("{}: {}: {why}", self.option, path.display());
                    Err(Usage(why).into())
                }
            },
            Err(error) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
        }
    }

    /// Writes a page, private to its user as sessions are.
    ///
    /// # Errors
    /// If the page cannot be written. An older page then stays, and no other file is left.
    pub fn save(&self, path: &Path, page: &str) -> Result<()> {
        let replaces = self.may_replace(path)?;
        let write = || {
            let (folder, name) = Folder::above(path, Share::Owner)?;
            let mut file = WholeFile::create(&folder, self.prefix)?;
            file.write_all(page.as_bytes())?;
            file.keep(&folder, &name, replaces)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A file that only its user can read. The file appears under its name when the file is whole; otherwise the
/// file never appears.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    /// Name while the file is written. If `name` is `None`, the file has no name. No file is then left
    /// behind, however the process ends.
    name: Option<Unfinished>,
    prefix: &'static str,
    /// Number of bytes written so far.
    bytes: u64,
}

/// Name of a file while the file is written, on a file system without unnamed files. Dropping the name
/// removes the file.
#[derive(Debug)]
struct Unfinished {
    folder: Folder,
    name: String,
    inode: (u64, u64),
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.folder.remove_own(&self.name, self.inode);
    }
}

impl WholeFile {
    /// Creates a file in `folder`, without a name if the file system can do so.
    pub fn create(folder: &Folder, prefix: &'static str) -> io::Result<WholeFile> {
        match folder.unnamed_file() {
            Some(file) => Ok(WholeFile::of(file, None, prefix)),
            None => WholeFile::with_name(folder, prefix),
        }
    }

    fn with_name(folder: &Folder, prefix: &'static str) -> io::Result<WholeFile> {
        let (name, file) = Folder::with_free_name(prefix, |name| folder.only_file(name))?;
        let inode = inode(&fstat(&file)?);
        let unfinished = Unfinished { folder: folder.clone(), name, inode };
        Ok(WholeFile::of(file, Some(unfinished), prefix))
    }

    fn of(file: OwnedFd, name: Option<Unfinished>, prefix: &'static str) -> WholeFile {
        WholeFile { file: file.into(), name, prefix, bytes: 0 }
    }

    /// Returns whether a part of the file remains if a signal ends the process.
    pub fn has_name(&self) -> bool {
        self.name.is_some()
    }

    /// Gives the file its name in a directory of the same file system. With `replaces`, `folder` has to be
    /// the directory in which the file was created.
    pub fn keep(self, folder: &Folder, name: &OsStr, replaces: bool) -> io::Result<()> {
        match (&self.name, replaces) {
            (Some(own), true) => own.folder.rename(&own.name, name),
            (Some(own), false) => own.folder.move_new(&own.name, folder, name),
            (None, false) => folder.link(&self.file, name),
            (None, true) => {
                // A link cannot replace a file, so the new file gets a temporary name first, and a rename
                // replaces the old file.
                let link = |own: &str| folder.link(&self.file, own);
                let (own, ()) = Folder::with_free_name(self.prefix, link)?;
                folder.rename(&own, name).inspect_err(|_| drop(folder.remove(&own)))
            }
        }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let grown = self.bytes + bytes.len() as u64;
        check_size(grown)?;
        self.file.write_all(bytes)?;
        self.bytes = grown;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Checks that a file's directory exists.
///
/// # Errors
/// If the directory does not exist.
pub fn check_folder(path: &Path) -> Result<(), Usage> {
    let folder = folder(path);
    match folder.is_dir() {
        true => Ok(()),
        false => Err(Usage(format!("the directory {} does not exist", folder.display()))),
    }
}

/// Returns the directory of a file.
fn folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Reads as many bytes of a file as `mark` has. The file may have been replaced since the last look.
fn beginning(path: &Path, mark: &str) -> io::Result<Vec<u8>> {
    let (file, _) = open_regular(CWD, path, OFlags::RDONLY)?;
    let mut bytes = vec![0; mark.len()];
    let read = read_at(file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode, mknodat};
    use std::os::unix::fs::symlink;

    const MARK: &str = "<!-- a page -->";

    #[test]
    fn a_link_is_not_followed_and_a_pipe_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let [page, link, pipe] = ["page", "link", "pipe"].map(|name| dir.path().join(name));
        fs::write(&page, MARK).unwrap();
        symlink(&page, &link).unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();

        assert_eq!(beginning(&page, MARK).unwrap(), MARK.as_bytes());
        assert!(beginning(&link, MARK).is_err());
        assert!(beginning(&pipe, MARK).is_err());
    }

    #[test]
    fn a_file_with_a_name_or_without_appears_when_it_is_kept() {
        type Create = fn(&Folder, &'static str) -> io::Result<WholeFile>;
        for create in [WholeFile::create as Create, WholeFile::with_name] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("page");
            let (folder, name) = Folder::above(&path, Share::Owner).unwrap();
            let written = |text: &str, replaces| {
                let mut file = create(&folder, "x")?;
                file.write_all(text.as_bytes())?;
                file.keep(&folder, &name, replaces)
            };
            let mut dropped = create(&folder, "x").unwrap();
            dropped.write_all(b"half").unwrap();
            drop(dropped);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

            written("first", false).unwrap();
            written("second", false).unwrap_err();
            assert_eq!(fs::read(&path).unwrap(), b"first");
            written("third", true).unwrap();

            assert_eq!(fs::read(&path).unwrap(), b"third");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}
