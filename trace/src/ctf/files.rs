//! The files of a trace. The files are in a directory, unless the session is written to a journal. A journal
//! has the operations on the files.

use super::appended::Appended;
use super::journal::Journal;
use super::open_files::{Inode, OpenFiles};
use hypertrace_format::error::WriteFailed;
use hypertrace_format::folder::{Folder, Share};
use hypertrace_format::{classes, session_json};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Name of the trace's folder while the session is created. The folder gets its final name only when it has
/// the metadata, because nobody can read a trace without metadata.
pub(crate) const HIDDEN: &str = ".ctf";
/// Name of the trace's folder after the session was created.
pub(crate) const CTF: &str = "ctf";

/// A file that describes the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Description {
    /// `classes.jsonl`.
    Classes,
    /// `session.json`.
    Session,
    /// `ctf/metadata`.
    Metadata,
}

impl Description {
    /// All descriptions, in the order in which they are made.
    pub const ALL: [Description; 3] =
        [Description::Classes, Description::Session, Description::Metadata];

    /// Returns the file's name, in the session's directory or in the trace's folder.
    pub fn name(self) -> &'static str {
        match self {
            Description::Classes => classes::FILE,
            Description::Session => session_json::FILE,
            Description::Metadata => "metadata",
        }
    }
}

/// Removes what a session made in a directory that was empty before.
pub(crate) fn clear(dir: &Folder) {
    let _ = dir.remove_folder(HIDDEN);
    let _ = dir.remove_folder(CTF);
    let _ = dir.remove(session_json::FILE);
    let _ = dir.remove(classes::FILE);
}

/// The open directory of a session, or the path of a session's journal.
#[derive(Clone, Debug)]
pub(crate) enum Root {
    Directory(Folder),
    /// A journal. Messages name the journal's session by the path.
    Journal(PathBuf),
}

impl Root {
    pub fn path(&self) -> &Path {
        match self {
            Root::Directory(dir) => dir.path(),
            Root::Journal(path) => path,
        }
    }

    /// Returns the session's directory.
    ///
    /// # Errors
    /// If the session is written to a journal.
    pub fn folder(&self) -> io::Result<&Folder> {
        match self {
            Root::Directory(dir) => Ok(dir),
            Root::Journal(_) => {
                let why = "the session is written to a journal and has no directory here";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
        }
    }

    /// Removes what the session made in a directory that was empty before.
    pub fn clear(&self) {
        if let Root::Directory(dir) = self {
            clear(dir);
        }
    }
}

/// A stream file that this process created.
#[derive(Debug)]
pub(crate) struct FileId {
    pub name: String,
    /// Device and inode of the file, if it is in a directory.
    inode: Option<Inode>,
}

/// The files of a trace.
#[derive(Debug)]
pub struct Files(Kind);

#[derive(Debug)]
enum Kind {
    Directory {
        /// The session's directory.
        dir: Folder,
        files: OpenFiles,
        /// The files of the descriptions, in the order of [`Description`]. `None` stands for a description
        /// that does not exist.
        descriptions: [Option<Appended>; 3],
    },
    Journal {
        journal: Journal,
        /// Sizes of the descriptions in bytes.
        lengths: [u64; 3],
    },
}

impl Files {
    /// Returns the files of a trace in this folder. At most `most` of the files are open at the same time.
    ///
    /// # Errors
    /// If the folder cannot be opened.
    pub fn at(folder: &Path, most: usize) -> io::Result<Files> {
        let folder = Folder::open(folder, Share::Owner)?;
        let files = OpenFiles::new(folder.clone(), most);
        Ok(Files(Kind::Directory { dir: folder, files, descriptions: [None, None, None] }))
    }

    /// Opens and locks the folder `name` in the session's directory.
    ///
    /// # Errors
    /// If the folder cannot be opened.
    pub(crate) fn open(dir: &Folder, name: &str, most: usize) -> Result<Files, WriteFailed> {
        let path = dir.path().join(name);
        let folder = dir.folder(name).map_err(WriteFailed::on("open", &path))?;
        folder.lock();
        let files = OpenFiles::new(folder, most);
        Ok(Files(Kind::Directory { dir: dir.clone(), files, descriptions: [None, None, None] }))
    }

    pub(crate) fn journal(journal: Journal) -> Files {
        Files(Kind::Journal { journal, lengths: [0; 3] })
    }

    /// Renames the folder of a trace from its hidden name to its final name. The folder must have the
    /// descriptions already.
    ///
    /// # Errors
    /// If the folder cannot be renamed.
    pub(crate) fn appear(&mut self) -> Result<(), WriteFailed> {
        let Kind::Directory { dir, files, .. } = &mut self.0 else { return Ok(()) };
        let path = dir.path().join(CTF);
        dir.rename(HIDDEN, CTF).map_err(WriteFailed::on("create", &path))?;
        files.moved(path);
        Ok(())
    }

    /// Replaces a description.
    ///
    /// # Errors
    /// If the new description cannot be written. The old description then stays.
    pub(crate) fn replace(&mut self, what: Description, text: &[u8]) -> Result<(), WriteFailed> {
        let len = text.len() as u64;
        match &mut self.0 {
            Kind::Directory { dir, files, descriptions } => {
                let folder = if what == Description::Metadata { files.folder() } else { dir };
                let file = folder.replace(what.name(), text)?;
                descriptions[what as usize] = Some(Appended::new(file, len));
            }
            Kind::Journal { journal, lengths } => {
                let path = journal.path().join(what.name());
                journal.replace(what, text).map_err(WriteFailed::on("write", &path))?;
                lengths[what as usize] = len;
            }
        }
        Ok(())
    }

    /// Appends a whole piece to a description. After an error, no part of the piece is in the description.
    ///
    /// # Errors
    /// If the piece cannot be written. In this case, the description keeps its previous contents.
    pub(crate) fn append(&mut self, what: Description, piece: &[u8]) -> Result<(), WriteFailed> {
        let (appended, path) = match &mut self.0 {
            Kind::Directory { dir, files, descriptions } => {
                let folder = if what == Description::Metadata { files.folder() } else { dir };
                let appended = match &mut descriptions[what as usize] {
                    Some(file) => file.append(piece),
                    None => Err(not_here()),
                };
                (appended, folder.path().join(what.name()))
            }
            Kind::Journal { journal, lengths } => {
                let len = &mut lengths[what as usize];
                let appended = journal.append(what, *len, piece);
                *len += if appended.is_ok() { piece.len() as u64 } else { 0 };
                (appended, journal.path().join(what.name()))
            }
        };
        appended.map_err(WriteFailed::on("write", &path))
    }

    /// Returns the size of a description in bytes.
    pub(crate) fn len(&self, what: Description) -> u64 {
        match &self.0 {
            Kind::Directory { descriptions, .. } => {
                descriptions[what as usize].as_ref().map_or(0, Appended::len)
            }
            Kind::Journal { lengths, .. } => lengths[what as usize],
        }
    }

    /// Returns the path of a file. Messages show this path.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match &self.0 {
            Kind::Directory { files, .. } => files.folder().path().join(name),
            Kind::Journal { journal, .. } => journal.path().join(CTF).join(name),
        }
    }

    /// Creates a sparse file of this length. The file begins with `head`. The file gets its name only when it
    /// is complete, and an error leaves no part of the file behind.
    pub(crate) fn create(&mut self, name: &str, len: u64, head: &[u8]) -> io::Result<FileId> {
        let inode = match &mut self.0 {
            Kind::Directory { files, .. } => Some(files.create(name, len, head)?),
            Kind::Journal { journal, .. } => {
                journal.create(name, len, head)?;
                None
            }
        };
        Ok(FileId { name: name.to_owned(), inode })
    }

    /// Returns true if one [`write`](Self::write) writes a whole packet or nothing. If false, the caller must
    /// write the packet's header last.
    pub(crate) fn takes_whole_packets(&self) -> bool {
        matches!(self.0, Kind::Journal { .. })
    }

    /// Writes all of `bytes`.
    pub(crate) fn write(&mut self, id: &FileId, bytes: &[u8], at: u64) -> io::Result<()> {
        match (&mut self.0, id.inode) {
            (Kind::Directory { files, .. }, Some(inode)) => files.write(&id.name, inode, bytes, at),
            (Kind::Journal { journal, .. }, None) => journal.write(&id.name, bytes, at),
            _ => Err(not_here()),
        }
    }

    /// Closes the file. If `end` is given, first cuts the file to this length.
    pub(crate) fn close(&mut self, id: &FileId, end: Option<u64>) -> io::Result<()> {
        match (&mut self.0, id.inode) {
            (Kind::Directory { files, .. }, Some(inode)) => files.close(&id.name, inode, end),
            (Kind::Journal { journal, .. }, None) => journal.close(&id.name, end),
            _ => Err(not_here()),
        }
    }

    /// Calls `each` with every descriptor.
    pub(crate) fn each_descriptor(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        match &self.0 {
            Kind::Directory { dir, files, descriptions } => {
                each(dir.as_fd());
                files.each_descriptor(each);
                descriptions.iter().flatten().for_each(|file| each(file.as_fd()));
            }
            Kind::Journal { journal, .. } => each(journal.as_fd()),
        }
    }

    /// Returns true if bytes still wait for a journal's reader.
    pub(crate) fn has_waiting(&self) -> bool {
        matches!(&self.0, Kind::Journal { journal, .. } if journal.has_waiting())
    }

    /// Returns the journal if the session is written to a journal.
    pub(crate) fn as_journal(&mut self) -> Option<&mut Journal> {
        match &mut self.0 {
            Kind::Directory { .. } => None,
            Kind::Journal { journal, .. } => Some(journal),
        }
    }
}

/// Returns the error for a file that these `Files` did not create.
fn not_here() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the file was not created here")
}
