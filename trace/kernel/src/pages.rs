//! Moves the buffers of all CPUs to files.
//!
//! Full pages move through a pipe without a copy in this process. A page that is still being filled cannot
//! move. Such a page is copied at the end, or before the end if the recording is live. Somebody reads a live
//! recording before the end.

use crate::error::Error;
use crate::instance::Instance;
use crate::state::{self, Buffer};
use crate::tscs::Tscs;
use crate::worker::{PERIOD, Worker};
use hypertrace_format::folder::{Folder, retry, write_at};
use rustix::fs::OFlags;
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Size of the pipe in bytes. One splice moves at most this number of bytes. Every user may have a pipe of
/// this size (pipe(7)).
const PIPE: usize = 1 << 20;

/// Maximum number of splices for one CPU in a pass, so that a busy CPU does not hold up the other CPUs.
const MAX_SPLICES: u32 = 64;

/// Time between passes in a live recording.
const LIVE_PERIOD: Duration = Duration::from_millis(100);

/// Maximum number of parts of pages that a pass copies for one CPU in a live recording. The first part is the
/// rest of a page that has become full meanwhile. The second part is the events of the next page.
const MAX_PARTS: u32 = 2;

/// Time until the next try after a failed write.
const PAUSE: Duration = Duration::from_millis(100);

/// A CPU's buffer and its file.
#[derive(Debug)]
struct Cpu {
    buffer: Buffer,
    /// Name of the CPU's file.
    name: String,
    raw: OwnedFd,
    file: Option<OwnedFd>,
    /// Number of bytes in the file.
    written: u64,
}

/// All buffers of a recording's instances.
#[derive(Debug)]
pub(crate) struct Buffers {
    folder: Folder,
    page_size: usize,
    cpus: Vec<Cpu>,
    pipe: (OwnedFd, OwnedFd),
    /// Index of a CPU, and the number of this CPU's bytes that are still in the pipe.
    pending: (usize, usize),
    /// The first failed write.
    failure: Option<Error>,
}

impl Buffers {
    /// Opens the buffers. A file that a killed process left is continued after its last whole page.
    pub fn open<'i>(
        instances: impl IntoIterator<Item = &'i (Buffer, Instance)>,
        folder: Folder,
        page_size: usize,
    ) -> Result<Buffers, Error> {
        let mut cpus = Vec::new();
        for (buffer, instance) in instances {
            for number in instance.cpus()? {
                let dir = instance.cpu(number)?;
                let raw = "trace_pipe_raw";
                let path = || dir.path().join(raw);
                let opened = dir.open(raw);
                let raw = opened.map_err(|source| Error::File {
                    action: "open",
                    path: path(),
                    source,
                })?;
                let name = buffer.file(number);
                let mut cpu = Cpu { buffer: *buffer, name, raw, file: None, written: 0 };
                match folder.file(&cpu.name, OFlags::RDWR) {
                    Ok((file, stat)) => {
                        let bytes = stat.st_size.unsigned_abs();
                        cpu.written = bytes - bytes % page_size as u64;
                        cpu.file = Some(file);
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(source) => return Err(state::failed("open", &folder, &cpu.name, source)),
                }
                cpus.push(cpu);
            }
        }
        let failed = |error: Errno| Error::System("make a pipe", error.into());
        let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
        // If the pipe stays smaller, the moves only need more calls.
        let _ = fcntl_setpipe_size(&pipe.1, PIPE);
        Ok(Buffers { folder, page_size, cpus, pipe, pending: (0, 0), failure: None })
    }

    /// Moves all full pages, and also copies the parts of pages if `is_live` is true. Returns false if a
    /// write failed. Later passes then try again, and the kernel meanwhile overwrites and counts its oldest
    /// events.
    fn pass(&mut self, is_live: bool) -> bool {
        let parts = if is_live { MAX_PARTS } else { 0 };
        // The reader of a live recording gets only the events that the caller has chosen, so copied parts of
        // pages of the buffer `cpus` would only fill the disk.
        let moved = self.try_pass().and_then(|()| self.parts(parts, &[Buffer::Asked]));
        let is_moved = moved.is_ok();
        if let Err(error) = moved {
            self.failure.get_or_insert(error);
        }
        is_moved
    }

    fn try_pass(&mut self) -> Result<(), Error> {
        self.flush()?;
        for index in 0..self.cpus.len() {
            for _ in 0..MAX_SPLICES {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                let raw = &self.cpus[index].raw;
                match retry(|| splice(raw, None, &self.pipe.1, None, PIPE, flags)) {
                    Ok(0) => break,
                    Ok(bytes) => self.pending = (index, bytes),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(Error::System("read the kernel's trace", error)),
                }
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the contents of the pipe to the file of their CPU.
    fn flush(&mut self) -> Result<(), Error> {
        let (index, mut left) = self.pending;
        while left > 0 {
            let (out, cpu) = (&self.pipe.0, &mut self.cpus[index]);
            let folder = &self.folder;
            let mut at = cpu.written;
            let written = cpu.open(folder).and_then(|file| {
                match retry(|| splice(out, None, file, Some(&mut at), left, SpliceFlags::MOVE))? {
                    0 => Err(io::ErrorKind::WriteZero.into()),
                    bytes => Ok(bytes),
                }
            });
            let written = written.map_err(|source| failed(folder, &cpu.name, source))?;
            cpu.written += written as u64;
            left -= written;
            self.pending = (index, left);
        }
        Ok(())
    }

    fn written(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.written).sum()
    }

    /// Moves all pages, even pages that are not full, out of the buffers. The kernel must no longer write to
    /// the buffers.
    fn rest(&mut self) -> Result<(), Error> {
        // The loop calls more than one pass, because a pass may leave full pages in buffers of more than 64
        // MiB.
        let mut before = None;
        while before != Some(self.written()) {
            before = Some(self.written());
            self.try_pass()?;
        }
        // One or two pages of each buffer did not move. The copy needs no limit, because the kernel adds no
        // more events.
        self.parts(u32::MAX, &Buffer::ALL)
    }

    /// Copies events from pages of these buffers that could not move, at most `most` times for each CPU.
    fn parts(&mut self, most: u32, of: &[Buffer]) -> Result<(), Error> {
        let mut page = vec![0; self.page_size];
        for cpu in self.cpus.iter_mut().filter(|cpu| of.contains(&cpu.buffer)) {
            for _ in 0..most {
                let bytes = match retry(|| read(&cpu.raw, &mut page[..])) {
                    Ok(0) => break,
                    Ok(bytes) => bytes,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(Error::System("read the kernel's trace", error)),
                };
                page[bytes..].fill(0);
                let at = cpu.written;
                let written = cpu.open(&self.folder).and_then(|file| write_at(file, &page, at));
                written.map_err(|source| failed(&self.folder, &cpu.name, source))?;
                cpu.written += page.len() as u64;
            }
        }
        Ok(())
    }

    /// Moves all pages out of the buffers, and closes the buffers. The kernel must no longer write to the
    /// buffers. Returns the first failed write of an earlier pass.
    ///
    /// # Errors
    /// If an event cannot be moved in this call. Such an event stays in its buffer.
    pub fn finish(mut self) -> Result<Option<Error>, Error> {
        self.rest()?;
        Ok(self.failure)
    }
}

impl Cpu {
    /// Returns the CPU's file, which the first call creates.
    fn open(&mut self, folder: &Folder) -> io::Result<&OwnedFd> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => Ok(none.insert(folder.new_file(&self.name)?)),
        }
    }
}

fn failed(folder: &Folder, name: &str, source: io::Error) -> Error {
    Error::File { action: "write", path: folder.path().join(name), source }
}

/// Starts the thread that empties the buffers.
pub(crate) fn drain(
    mut pages: Buffers,
    is_live: bool,
    tscs: Tscs,
) -> Result<Worker<Buffers>, Error> {
    let period = if is_live { LIVE_PERIOD } else { PERIOD };
    Worker::start(tscs, move |stop| {
        while !stop.wait(pages.cpus.iter().map(|cpu| cpu.raw.as_fd()), period) {
            // After a failed write, the thread pauses without a poll: the full pages stay in their buffer, so
            // a poll would return at once.
            if !pages.pass(is_live) && stop.wait([].into_iter(), PAUSE) {
                break;
            }
        }
        pages
    })
}
