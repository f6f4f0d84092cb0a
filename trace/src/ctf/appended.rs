//! A file to which a writer appends whole pieces.

use hypertrace_format::folder::{check_size, set_len, write_at};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A file that ends with a whole piece: a piece that was only partly written is cut off.
#[derive(Debug)]
pub(super) struct Appended {
    file: OwnedFd,
    len: u64,
    /// True if the file still ends with a part of a failed piece, because the cut failed, too.
    is_torn: bool,
}

impl AsFd for Appended {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Appended {
    /// Returns a file of length `len`.
    pub fn new(file: OwnedFd, len: u64) -> Appended {
        Appended { file, len, is_torn: false }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Appends a piece with one write. If the disk is full, cuts off the part that was written.
    ///
    /// # Errors
    /// If the piece cannot be written. In this case, the file keeps its previous contents.
    pub fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        let end = self.len + piece.len() as u64;
        check_size(end)?;
        self.mend()?;
        write_at(&self.file, piece, self.len).inspect_err(|_| {
            self.is_torn = true;
            let _ = self.mend();
        })?;
        self.len = end;
        Ok(())
    }

    /// Cuts off the part of a piece that a failed write left.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            set_len(&self.file, self.len)?;
            self.is_torn = false;
        }
        Ok(())
    }
}
