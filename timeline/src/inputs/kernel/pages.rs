// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reads the pages of a CPU one after the other, with only a window of the pages in memory.

use super::file::{Buffer, Content, Cpu, TraceFile};
use super::zstd::decompress;
use crate::error::{Error, Result};
use crate::value::number;
use hypertrace_format::ring_page::used;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use ruzstd::decoding::FrameDecoder;
use std::fmt;

/// Maximum total size in bytes of the compressed chunks of all CPUs, and of the chunks' contents. The size is
/// limited because each CPU has one chunk in memory at any time. A chunk of trace-cmd has 10 pages.
const MAX_CHUNKS: u64 = 128 << 20;
/// Maximum size in bytes of one compressed chunk, and of the chunk's content.
const MAX_CHUNK: u64 = 16 << 20;

/// Maximum number of bytes to which the chunks of all CPUs may decompress, in addition to [`MAX_RATIO`] bytes
/// for each compressed byte. With this limit, the time to read a file depends only on the file's size.
const MAX_CONTENT: u64 = 256 << 20;
/// Maximum number of bytes to which a compressed byte may decompress. One compressed byte of real events
/// becomes about 10 bytes.
const MAX_RATIO: u64 = 64;

/// Size in bytes of three numbers in the file: the number of chunks, and the two sizes of each chunk.
const NUMBER: u64 = 4;

/// Position in the pages of a CPU.
pub(crate) struct PageReader<'a> {
    file: &'a TraceFile,
    page_size: usize,
    /// Offset in the file of the first byte after the window. `left` is the number of bytes from there to the
    /// end of the pages.
    at: u64,
    left: u64,
    /// Content of a page, or of a chunk of pages.
    window: Vec<u8>,
    /// Size of the unused end of the page in the file, in bytes.
    unused: usize,
    /// Offset in the file of the window, or of the chunk from which the window was decompressed.
    base: u64,
    /// Range of the page in the window.
    from: usize,
    to: usize,
    chunks: Option<Chunks>,
}

/// Chunks of compressed pages.
struct Chunks {
    /// Number of chunks that are not read yet. `None` before the first chunk is read.
    left: Option<u32>,
    /// Maximum size in bytes of the content of all further chunks.
    room: u64,
    packed: Vec<u8>,
    decoder: Box<FrameDecoder>,
}

impl fmt::Debug for PageReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageReader").field("at", &self.at).field("left", &self.left).finish()
    }
}

impl<'a> PageReader<'a> {
    pub fn new(file: &'a TraceFile, buffer: &Buffer, cpu: Cpu) -> PageReader<'a> {
        let is_compressed = buffer.is_compressed && cpu.len > 0;
        let decoder = || Box::new(FrameDecoder::new());
        let room = MAX_CONTENT / file.cpus() + MAX_RATIO.saturating_mul(cpu.len);
        let chunks = || Chunks { left: None, room, packed: Vec::new(), decoder: decoder() };
        // Four bytes are added, because trace-cmd 3.1 writes a size without the four bytes of the number of
        // chunks.
        let there = file.len.saturating_sub(cpu.at);
        let left = if is_compressed { (cpu.len + NUMBER).min(there) } else { cpu.len };
        PageReader {
            file,
            page_size: buffer.page_size,
            at: cpu.at,
            left,
            window: Vec::new(),
            unused: 0,
            base: cpu.at,
            from: 0,
            to: 0,
            chunks: is_compressed.then(chunks),
        }
    }

    /// Returns the page that was read last. If the file was cut, the last page may be shorter than the other
    /// pages.
    pub fn page(&self) -> &[u8] {
        &self.window[self.from..self.to]
    }

    /// Returns whether the page has its full length.
    pub fn is_whole(&self) -> bool {
        self.to - self.from + self.unused == self.page_size
    }

    /// Returns a text that names the place of one of the page's bytes in the file.
    pub fn place(&self, at: usize) -> String {
        match self.chunks {
            None => format!("byte {}", self.base + (self.from + at) as u64),
            Some(_) => format!("byte {} of the chunk at byte {}", self.from + at, self.base),
        }
    }

    /// Returns an error at a byte of the page.
    pub fn damaged(&self, at: usize, expected: &str, found: impl fmt::Display) -> Error {
        let path = &self.file.path;
        if self.chunks.is_none() {
            return Error::damaged(path, self.base + (self.from + at) as u64, expected, found);
        }
        let found = format!("{found} at byte {} of the decompressed chunk", self.from + at);
        Error::damaged(path, self.base, expected, found)
    }

    /// Ends the reading before the next page.
    pub fn end(&mut self) {
        self.window.clear();
        (self.from, self.to, self.left, self.chunks) = (0, 0, 0, None);
    }

    /// Reads the next page. Returns whether there is a next page.
    pub fn next(&mut self) -> Result<bool> {
        self.from = self.to;
        if self.from == self.window.len() && !self.fill()? {
            return Ok(false);
        }
        self.to = self.window.len().min(self.from + self.page_size);
        Ok(true)
    }

    /// Skips the pages of a hole that follows this page, and returns the number of skipped pages. Holes are
    /// skipped because a hole takes no space on a disk, so the time to read its zeros would have no bound.
    pub fn skip_hole(&mut self) -> u64 {
        let Content::File(file) = &self.file.content else { return 0 };
        if self.chunks.is_some() {
            return 0;
        }
        // The search may move the position of the open file, because all reads are at explicit offsets.
        let data = match seek(&file.file, SeekFrom::Data(self.at)) {
            Ok(data) => data,
            // The file has only a hole from this offset to its end.
            Err(Errno::NXIO) => u64::MAX,
            // The file system cannot search for data.
            Err(_) => return 0,
        };
        let pages = data.saturating_sub(self.at).min(self.left) / self.page_size as u64;
        let bytes = pages * self.page_size as u64;
        (self.at, self.left) = (self.at + bytes, self.left - bytes);
        pages
    }

    /// Fills the window with the next page or chunk.
    fn fill(&mut self) -> Result<bool> {
        (self.from, self.to) = (0, 0);
        self.base = self.at;
        match self.chunks.take() {
            Some(mut chunks) => {
                let filled = self.fill_from(&mut chunks);
                self.chunks = Some(chunks);
                filled
            }
            None => {
                let len = self.left.min(self.page_size as u64) as usize;
                let mut window = std::mem::take(&mut self.window);
                window.resize(len, 0);
                let read = self.read(&mut window);
                // The window is cut to its content to save memory. A trace may have many CPUs with few
                // events, and one page of each CPU is in memory.
                window.truncate(used(&window));
                window.shrink_to_fit();
                (self.unused, self.window) = (len - window.len(), window);
                read.map(|()| len > 0)
            }
        }
    }

    /// Decompresses the next chunk.
    fn fill_from(&mut self, chunks: &mut Chunks) -> Result<bool> {
        self.window.clear();
        let left = match chunks.left {
            Some(left) => left,
            None => self.u32()?,
        };
        let Some(more) = left.checked_sub(1) else {
            // Up to four bytes of another part may follow, because trace-cmd 3.1 writes a size without the
            // four bytes of the number of chunks.
            if self.left > NUMBER {
                let (path, expected) = (&self.file.path, "no bytes after the last chunk");
                return Err(Error::damaged(path, self.at, expected, format!("{} more", self.left)));
            }
            return Ok(false);
        };
        chunks.left = Some(more);
        self.base = self.at;
        let path = &self.file.path;
        let (packed, len) = (u64::from(self.u32()?), u64::from(self.u32()?));
        let most = (MAX_CHUNKS / self.file.cpus()).min(MAX_CHUNK);
        for (at, len) in [(self.base, packed), (self.base + 4, len)] {
            if len == 0 || len > most {
                let expected = format!("a chunk of 1 to {most} bytes");
                return Err(Error::damaged(path, at, expected, len));
            }
        }
        chunks.room = chunks.room.checked_sub(len).ok_or_else(|| {
            let expected =
                format!("{MAX_RATIO} bytes of content for each compressed byte of a CPU at most");
            Error::damaged(path, self.base + 4, expected, "more")
        })?;
        if packed > self.left {
            let expected = format!("{packed} bytes of a compressed chunk");
            return Err(Error::damaged(path, self.at, expected, format!("{}", self.left)));
        }
        chunks.packed.resize(packed as usize, 0);
        self.read(&mut chunks.packed)?;
        decompress(&mut chunks.decoder, &chunks.packed, len as usize, &mut self.window)
            .map_err(|why| Error::damaged(path, self.base + 8, "compressed data of zstd", why))?;
        Ok(true)
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        if self.left < 4 {
            let path = &self.file.path;
            return Err(Error::damaged(path, self.at, "4 bytes of a chunk's header", self.left));
        }
        self.read(&mut bytes)?;
        Ok(number(&bytes) as u32)
    }

    /// Reads from the file. The file had these bytes when it was opened.
    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.file.fill(bytes, self.at, || "more pages".into())?;
        self.at += bytes.len() as u64;
        self.left -= bytes.len() as u64;
        Ok(())
    }
}
