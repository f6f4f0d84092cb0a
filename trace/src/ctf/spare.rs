//! Files that are created ahead, for a thread that may create none later.
//!
//! A spare file is open and has a hidden name, until it gets its contents and then its name.

use hypertrace_format::error::WriteFailed;
use hypertrace_format::folder::{Folder, check_size, read_at, set_len, write_at};
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

/// First part of the names of spare files.
const PREFIX: &str = ".spare-";
/// Spare files of each description. A description that a reader has open is overwritten by the
/// fourth replacement after that, so a reader has this long to read it.
const OF_DESCRIPTION: usize = 3;

/// Removes all spare files in a folder.
pub(super) fn remove_spares(folder: &Folder) {
    for name in folder.all_names().unwrap_or_default() {
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            let _ = folder.remove(name);
        }
    }
}

/// An open file and its hidden name.
#[derive(Debug)]
pub(super) struct Spare {
    pub name: String,
    pub file: OwnedFd,
}

impl Spare {
    /// Creates a file of this hidden name.
    pub fn create(folder: &Folder, name: String) -> io::Result<Spare> {
        let file = folder.new_file(&name)?;
        Ok(Spare { name, file })
    }

    /// Creates spare stream files.
    pub fn create_many(folder: &Folder, number: usize) -> io::Result<Vec<Spare>> {
        (0..number).map(|n| Spare::create(folder, format!("{PREFIX}{n:04}"))).collect()
    }
}

/// A file that is replaced by exchanging names with a spare file.
#[derive(Debug)]
pub(super) struct Exchanged {
    name: &'static str,
    current: OwnedFd,
    /// The one that was replaced longest ago is first.
    spares: VecDeque<Spare>,
}

impl Exchanged {
    /// Creates spare files for the file of this name, which exists. `None`: the file system cannot
    /// exchange names.
    pub fn of(folder: &Folder, name: &'static str) -> io::Result<Option<Exchanged>> {
        let (current, stat) = folder.file(name, OFlags::RDWR)?;
        let mut text = vec![0; usize::try_from(stat.st_size).unwrap_or(0)];
        let read = read_at(&current, &mut text, 0)?;
        text.truncate(read);
        let spares = (0..OF_DESCRIPTION)
            .map(|n| Spare::create(folder, format!("{PREFIX}{name}-{n}")))
            .collect::<io::Result<_>>()?;
        let mut exchanged = Exchanged { name, current, spares };
        match exchanged.exchange(folder, &text) {
            Ok(()) => Ok(Some(exchanged)),
            Err(why) if matches!(why.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {
                for spare in exchanged.spares {
                    folder.remove(&spare.name)?;
                }
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// Replaces the file, so that a reader sees the old or the new one.
    ///
    /// # Errors
    /// If it cannot be written: the old one stays.
    pub fn replace(&mut self, folder: &Folder, text: &[u8]) -> Result<(), WriteFailed> {
        let path = folder.path().join(self.name);
        self.exchange(folder, text).map_err(WriteFailed::on("write", &path))
    }

    fn exchange(&mut self, folder: &Folder, text: &[u8]) -> io::Result<()> {
        check_size(text.len() as u64)?;
        let Some(Spare { name, file }) = self.spares.front() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        write_at(file, text, 0)?;
        set_len(file, text.len() as u64)?;
        folder.exchange(name, self.name)?;
        if let Some(Spare { name, file }) = self.spares.pop_front() {
            let file = std::mem::replace(&mut self.current, file);
            self.spares.push_back(Spare { name, file });
        }
        Ok(())
    }
}
