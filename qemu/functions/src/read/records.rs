// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Records of one task, in the order of the file.

use std::fs::File;
use std::path::{Path, PathBuf};

use hypertrace_format::folder::read_at;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::record::{Malformed, Record, RecordType, SIZE};
use crate::{Error, Result, file};

/// Size of the part of a file that is in memory, in bytes.
const WINDOW: usize = 1 << 16;

/// Alignment of records in bytes. uftrace pads the arguments of a record to a multiple of this number.
const ALIGNMENT: usize = 8;

/// Maximum size of a record's arguments in bytes. uftrace's buffer for arguments has this size.
const MAX_ARGUMENTS: u64 = 1024;

/// Maximum size in bytes of a run of zeros in which the reader looks for records word by word. A killed
/// recorder can leave more zeros than this at the end of a file.
const MAX_GAP: u64 = 1 << 20;

/// Maximum time in nanoseconds, a day, between the last record before unknown bytes and the first record
/// after these bytes. If bytes look like a record with a later time, the reader counts these bytes as
/// unknown, too.
const MAX_PAUSE: u64 = 86_400_000_000_000;

/// Iterator over the records of a file.
///
/// Arguments of functions are skipped. Bytes that are no record are skipped up to the next two records in a
/// row. After the last record, a single error names the first skipped byte and the number of all skipped
/// bytes, including the bytes of an incomplete record. The iterator ends at unwritten zeros that reach to the
/// end of the file, or when the file cannot be read.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    /// The file; `None` after the end of the records
    file: Option<File>,
    window: Vec<u8>,
    /// Start of the unread bytes in the window
    at: usize,
    /// Offset of the unread bytes in the file
    offset: u64,
    /// Time and depth of the last record
    last: Option<(u64, u16)>,
    damage: Option<Damage>,
}

/// Bytes of a file that are no records.
#[derive(Debug)]
struct Damage {
    /// Offset in the file of the first byte that is no record
    offset: u64,
    why: Malformed,
    /// Number of places with bytes that are no records
    places: u64,
    /// Number of bytes that are no records
    bytes: u64,
}

impl Records {
    /// Opens a file of records. A file that does not exist has no records.
    ///
    /// # Errors
    /// If the path is not a file, or the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = file::open_records(path)?;
        let window = Vec::new();
        Ok(Records {
            path: path.to_owned(),
            file,
            window,
            at: 0,
            offset: 0,
            last: None,
            damage: None,
        })
    }

    /// Reads the next record; `None` at the end.
    fn read(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(bytes) = self.peek(0)? else {
                self.end(0);
                return Ok(None);
            };
            let (record, has_arguments) = match Record::with_arguments(bytes) {
                Ok(found) => found,
                Err(why) => {
                    if !self.skip_damage(why)? {
                        return Ok(None);
                    }
                    continue;
                }
            };
            self.advance(SIZE);
            self.last = Some((record.time, record.depth));
            if has_arguments {
                self.skip_arguments(&record)?;
            }
            return Ok(Some(record));
        }
    }

    /// Skips the arguments of a record, up to the first bytes that can be the next record. If no such bytes
    /// follow, then the next read finds damage.
    fn skip_arguments(&mut self, record: &Record) -> Result<()> {
        // A function is deeper by 1 than the function that calls it.
        let deepest = record.depth.saturating_add(u16::from(record.kind == RecordType::Entry));
        for ahead in (ALIGNMENT..=MAX_ARGUMENTS as usize).step_by(ALIGNMENT) {
            let Some(bytes) = self.peek(ahead)? else {
                // If the record is the last record of the file, then the rest of the file's whole words are
                // the record's arguments.
                self.end((self.window.len() - self.at) / ALIGNMENT * ALIGNMENT);
                return Ok(());
            };
            let next = Record::with_arguments(bytes).ok();
            if next.is_some_and(|(next, _)| next.depth <= deepest) && self.is_record(ahead)? {
                self.advance(ahead);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Skips bytes that are no record, and counts them as damage. Returns false if no record follows.
    fn skip_damage(&mut self, why: Malformed) -> Result<bool> {
        let is_zero = why == Malformed::Unwritten;
        let begin = self.offset;
        let mut zeros = if is_zero { ALIGNMENT as u64 } else { 0 };
        while let Some(bytes) = self.peek(ALIGNMENT)? {
            let is_found = self.is_record(ALIGNMENT)?;
            self.advance(ALIGNMENT);
            if is_found {
                self.note(begin, why, self.offset - begin);
                return Ok(true);
            }
            let is_zero_word = bytes[..ALIGNMENT] == [0; ALIGNMENT];
            zeros = if is_zero_word { zeros + ALIGNMENT as u64 } else { 0 };
            if zeros > MAX_GAP {
                let written = self.offset + ALIGNMENT as u64 - zeros;
                if !self.skip_zeros()? {
                    if !is_zero {
                        self.note(begin, why, written - begin);
                    }
                    return Ok(false);
                }
                zeros = 0;
            }
        }
        let rest = &self.window[self.at..];
        if !is_zero || rest.iter().any(|byte| *byte != 0) {
            let bytes = self.offset - begin + rest.len() as u64;
            self.note(begin, why, bytes);
        }
        Ok(false)
    }

    /// Skips zeros, up to the word before the next byte that is not zero. Returns false if only zeros follow.
    /// A hole in the file may have any size, so the function does not read the zeros of a hole.
    fn skip_zeros(&mut self) -> Result<bool> {
        // Each round skips a window, except for the last round.
        loop {
            let rest = &self.window[self.at..];
            if let Some(zeros) = rest.iter().position(|byte| *byte != 0) {
                self.advance((zeros / ALIGNMENT).saturating_sub(1) * ALIGNMENT);
                return Ok(true);
            }
            // The last word of zeros is not skipped, because the search for a record begins one word later.
            self.advance((rest.len() / ALIGNMENT).saturating_sub(1) * ALIGNMENT);
            let Some(file) = &self.file else { return Ok(false) };
            match seek(file, SeekFrom::Data(self.offset)) {
                // The rest of the file is a hole.
                Err(Errno::NXIO) => return Ok(false),
                Ok(data) if data > self.offset + WINDOW as u64 => {
                    self.window.clear();
                    let word = ALIGNMENT as u64;
                    (self.at, self.offset) = (0, data / word * word - word);
                }
                // Data follow in this window, or the file system cannot search for data.
                _ => {}
            }
            let kept = self.window.len() - self.at;
            self.fill()?;
            if self.window.len() == kept {
                return Ok(false);
            }
        }
    }

    /// Skips `after` bytes, and then the rest of the file. If the rest has a byte that is not zero, then the
    /// rest counts as an incomplete record.
    fn end(&mut self, after: usize) {
        self.advance(after);
        let rest = &self.window[self.at..];
        if rest.iter().any(|byte| *byte != 0) {
            self.note(self.offset, Malformed::Cut, rest.len() as u64);
        }
        self.advance(self.window.len() - self.at);
    }

    /// Returns whether a record begins `ahead` bytes after the first unread byte. The record's time must fit
    /// the last record's time, and another record or the end of the records must follow.
    fn is_record(&mut self, ahead: usize) -> Result<bool> {
        let Some(bytes) = self.peek(ahead)? else { return Ok(false) };
        let Ok((record, has_arguments)) = Record::with_arguments(bytes) else { return Ok(false) };
        let is_next =
            |time: u64, last: u64| (last..=last.saturating_add(MAX_PAUSE)).contains(&time);
        if self.last.is_some_and(|(time, _)| !is_next(record.time, time)) {
            return Ok(false);
        }
        let Some(bytes) = self.peek(ahead + SIZE)? else { return Ok(true) };
        // After a record with arguments, nobody knows where the next record begins.
        Ok(has_arguments
            || match Record::with_arguments(bytes) {
                Ok((next, _)) => is_next(next.time, record.time),
                Err(why) => why == Malformed::Unwritten,
            })
    }

    fn note(&mut self, offset: u64, why: Malformed, bytes: u64) {
        let damage = self.damage.get_or_insert(Damage { offset, why, places: 0, bytes: 0 });
        damage.places += 1;
        damage.bytes += bytes;
    }

    /// Returns the 16 bytes of the file that begin `ahead` bytes after the first unread byte; `None` if the
    /// file ends before the last of the 16 bytes.
    fn peek(&mut self, ahead: usize) -> Result<Option<[u8; SIZE]>> {
        let end = self.at + ahead + SIZE;
        if end > self.window.len() {
            self.fill()?;
        }
        let bytes = self.window[self.at..].get(ahead..ahead + SIZE);
        Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
    }

    /// Drops the consumed bytes from the window, and fills the window from the file.
    fn fill(&mut self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        self.window.drain(..self.at);
        self.at = 0;
        let kept = self.window.len();
        self.window.resize(WINDOW.max(kept), 0);
        let read = read_at(file, &mut self.window[kept..], self.offset + kept as u64);
        self.window.truncate(kept + *read.as_ref().unwrap_or(&0));
        read.map(drop).map_err(Error::io("read", &self.path))
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        self.offset += bytes as u64;
    }
}

impl Iterator for Records {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        self.file.as_ref()?;
        match self.read() {
            Ok(Some(record)) => return Some(Ok(record)),
            Ok(None) => {}
            Err(error) => {
                self.file = None;
                return Some(Err(error));
            }
        }
        self.file = None;
        let Damage { offset, why, places, bytes } = self.damage.take()?;
        let places = if places == 1 { "1 place".into() } else { format!("{places} places") };
        let why = format!("{why} ({bytes} bytes at {places} are left out)");
        Some(Err(Error::damaged(&self.path, offset, why)))
    }
}
