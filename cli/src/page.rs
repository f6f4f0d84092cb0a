//! Files that are written whole or not at all: pages for a browser, and exports.

use crate::Usage;
use anyhow::{Context, Result};
use hypertrace_format::folder::{open_regular, read_at};
use rustix::fs::{CWD, OFlags};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// Page of a command.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Its beginning. Only files that begin like this are replaced.
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
    /// If there is something else than an older page.
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
            Err(error) if error.kind() == io::ErrorKind::NotFound => match folder(path).is_dir() {
                true => Ok(false),
                false => refuse("is in no directory that there is"),
            },
            Err(error) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
        }
    }

    /// Writes a page. It is private to its user, as sessions are.
    ///
    /// # Errors
    /// If it cannot be written: an older page stays, and no other file.
    pub fn save(&self, path: &Path, page: &str) -> Result<()> {
        let replaces = self.may_replace(path)?;
        let write = || {
            let mut file = WholeFile::create(path, self.prefix)?;
            file.write_all(page.as_bytes())?;
            file.keep(path, replaces)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// File that appears under its name when it is whole, or not at all. It is private to its user.
#[derive(Debug)]
pub struct WholeFile {
    file: NamedTempFile,
    /// Bytes that may still be written: a file that grows beyond its limit ends the process by a signal.
    left: u64,
}

impl WholeFile {
    /// Creates a file beside its place.
    pub fn create(path: &Path, prefix: &str) -> io::Result<WholeFile> {
        let file = tempfile::Builder::new().prefix(prefix).tempfile_in(folder(path));
        // Without the name of the temporary file.
        let file = file.map_err(|error| io::Error::from(error.kind()))?;
        Ok(WholeFile { file, left: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX) })
    }

    /// Gives the file its name.
    pub fn keep(self, path: &Path, replaces: bool) -> io::Result<()> {
        match replaces {
            true => self.file.persist(path),
            false => self.file.persist_noclobber(path),
        }?;
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            let why = "it would grow beyond RLIMIT_FSIZE";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        };
        self.left = left;
        self.file.as_file_mut().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

/// Returns the directory of a file.
fn folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Reads as much of a file as a page begins with. The file may be another one than a moment ago.
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
}
