//! Sends the recording of a guest's kernel to the host in pieces during the recording.
//!
//! The pieces are parts of the files that a recording on a disk would have (see [`state`](crate::state)). The
//! host puts the pieces together and completes the recording.

use crate::clock::{Clock, Reading};
use crate::error::Error;
use crate::instance::Instance;
use crate::owner::Owner;
use crate::recording::{default_buffer_kib, json, next_owner};
use crate::registry;
use crate::source::Source;
use crate::state::{END, EndJson, HEAD, JSON, cpu_file};
use crate::stats::Stats;
use crate::steal::stolen_ms;
use crate::threads;
use crate::tracefs;
use hypertrace_abi::record::ClockKind;
use hypertrace_format::folder::retry;
use hypertrace_format::ring_page;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use serde::Serialize;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Maximum size of a piece in bytes: the room in a field of an event.
pub const PIECE: usize = 8 * hypertrace_abi::event::MAX_SLICE;

/// Maximum number of a CPU's pages in a pass, so that a busy CPU does not hold up the other CPUs.
const MAX_PAGES: u32 = 4096;

/// Maximum number of times that the recorder reads the last pages. The recorder reads less often if the
/// kernel's counters show that all events were read.
const LAST_READS: u32 = 8;

/// Directory that the note of an instance names. A recording for a host has no directory, but a note must
/// name some directory.
const NO_DIRECTORY: &str = "/run/hypertrace/for-the-host";

/// Part of a file of a guest's recording.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Piece<'a> {
    /// Id of the recording. All pieces of a recording have the same id.
    pub recording: u64,
    /// Name of the file.
    pub file: &'a str,
    /// Offset in the file in bytes. A piece at offset 0 replaces all earlier pieces of the file.
    pub at: u64,
    /// Bytes of the file, at most [`PIECE`].
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Makes a piece.
    pub fn new(recording: u64, file: &'a str, at: u64, bytes: &'a [u8]) -> Piece<'a> {
        Piece { recording, file, at, bytes }
    }
}

/// Counts of a forwarded recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forwarded {
    /// Size of the events in bytes.
    pub bytes: u64,
    /// Number of events that were overwritten before they were read.
    pub overwritten: u64,
    /// Number of pages with events that could not be sent, because the ring to the host had no room.
    pub unsent: u64,
}

/// The recording of this machine's kernel for a host. The recording has the events of all threads except for
/// the calling thread.
///
/// The caller passes a function that sends a piece, and returns false if the piece cannot be sent.
#[derive(Debug)]
pub struct Forwarding {
    recording: u64,
    instance: Instance,
    owner: Owner,
    events: Vec<String>,
    buffer_kib: u32,
    /// Clock that stamps the recorder's own events, and also the events of the guest's programs.
    clock: ClockKind,
    cpus: Vec<Cpu>,
    page: Vec<u8>,
    counts: Forwarded,
}

#[derive(Debug)]
struct Cpu {
    name: String,
    raw: OwnedFd,
    /// Number of pages that were read.
    pages: u64,
}

impl Forwarding {
    /// Starts a recording of these events. The default is the events that tell which thread each CPU has, and
    /// what woke the thread. Sends the descriptions of the events. The pieces are events with timestamps of
    /// `clock`, and the host uses these timestamps to place the recording in time.
    ///
    /// # Errors
    /// If the kernel's trace cannot be used or lacks one of the events, or if the descriptions cannot be
    /// sent.
    pub fn start(
        events: &[String],
        buffer_kib: Option<u32>,
        clock: ClockKind,
        send: &mut dyn FnMut(&Piece<'_>) -> bool,
    ) -> Result<Forwarding, Error> {
        let root = tracefs::find()?;
        let owner = next_owner();
        registry::add(&owner, Path::new(NO_DIRECTORY))?;
        let name = owner.to_string();
        let made = Instance::create(root, &name).inspect_err(|_| registry::remove(&name))?;
        let mut forwarding = Forwarding {
            recording: 0,
            instance: made,
            owner,
            events: Vec::new(),
            buffer_kib: 0,
            clock,
            cpus: Vec::new(),
            page: vec![0; rustix::param::page_size()],
            counts: Forwarded::default(),
        };
        match forwarding.prepare(events, buffer_kib, send) {
            Ok(()) => Ok(forwarding),
            Err(why) => {
                forwarding.remove();
                Err(why)
            }
        }
    }

    fn prepare(
        &mut self,
        events: &[String],
        buffer_kib: Option<u32>,
        send: &mut dyn FnMut(&Piece<'_>) -> bool,
    ) -> Result<(), Error> {
        let numbers = self.instance.cpus()?;
        self.buffer_kib = buffer_kib.unwrap_or(default_buffer_kib(numbers.len()));
        self.events = self.instance.configure(events, self.buffer_kib, true)?;
        let (clock, reading) = self.clock();
        self.instance.set_clock(clock)?;
        // The recorder does not record itself, because each event that the recorder sends would cause further
        // events of the recorder.
        self.instance.leave_out(threads::current())?;
        for number in &numbers {
            let raw = self.instance.cpu(*number)?.open("trace_pipe_raw");
            let raw = raw.map_err(|e| Error::System("open a buffer of the kernel's trace", e))?;
            self.cpus.push(Cpu { name: cpu_file(*number), raw, pages: 0 });
        }
        let json = json(&self.owner, Source::Tracefs, numbers, &[]);
        self.recording = json.trace_id;
        let description = self.instance.describe(&self.events, json.page_size as u32)?;
        self.send_all(HEAD, &description.to_bytes(), send)?;
        let system = Some(crate::trace_dat::system());
        let json = crate::state::RecordingJson { system, clock, reading, ..json };
        self.send_json(JSON, &json, send)?;
        self.instance.switch(true)
    }

    /// Returns the clock that stamps the kernel's events, and a reading that relates this clock to the
    /// counter. If the programs stamp their events with CLOCK_MONOTONIC_RAW, then the kernel's events have
    /// this clock, too, and need no reading.
    fn clock(&self) -> (Clock, Option<Reading>) {
        match self.clock {
            ClockKind::Tsc => (Clock::OWN, Clock::OWN.reading()),
            ClockKind::MonotonicRaw => (Clock::MonotonicRaw, None),
        }
    }

    /// Returns the recorded events, as `SYSTEM:EVENT`.
    pub fn events(&self) -> &[String] {
        &self.events
    }

    /// Returns the size of a CPU's buffer in KiB.
    pub fn buffer_kib(&self) -> u32 {
        self.buffer_kib
    }

    /// Waits until there are events or a signal comes, but at most for `wait`. Then sends all present events.
    ///
    /// # Errors
    /// If the kernel's buffers cannot be read.
    pub fn pass(
        &mut self,
        wait: Duration,
        send: &mut dyn FnMut(&Piece<'_>) -> bool,
    ) -> Result<(), Error> {
        // The wait ends only when a good part of a buffer is full, because each pass costs the guest time.
        let mut fds: Vec<PollFd<'_>> =
            self.cpus.iter().map(|cpu| PollFd::new(&cpu.raw, PollFlags::IN)).collect();
        // If a signal interrupts the wait, the pass just begins early.
        let _ = poll(&mut fds, Timespec::try_from(wait).ok().as_ref());
        self.send_pages(send)
    }

    fn send_pages(&mut self, send: &mut dyn FnMut(&Piece<'_>) -> bool) -> Result<(), Error> {
        let (recording, page) = (self.recording, &mut self.page);
        for cpu in &mut self.cpus {
            for _ in 0..MAX_PAGES {
                let bytes = match retry(|| read(&cpu.raw, &mut page[..])) {
                    Ok(0) => break,
                    Ok(bytes) => bytes,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(Error::System("read the kernel's trace", error)),
                };
                let used = &page[..ring_page::used(&page[..bytes])];
                let start = cpu.pages * page.len() as u64;
                cpu.pages += 1;
                let mut pieces = (start..).step_by(PIECE).zip(used.chunks(PIECE));
                let is_sent =
                    pieces.all(|(at, part)| send(&Piece::new(recording, &cpu.name, at, part)));
                self.counts.bytes += used.len() as u64;
                self.counts.unsent += u64::from(!is_sent);
            }
        }
        Ok(())
    }

    fn send_all(
        &self,
        file: &str,
        bytes: &[u8],
        send: &mut dyn FnMut(&Piece<'_>) -> bool,
    ) -> Result<(), Error> {
        let mut pieces = (0..).step_by(PIECE).zip(bytes.chunks(PIECE));
        let is_sent = pieces.all(|(at, part)| send(&Piece::new(self.recording, file, at, part)));
        let unsent = || io::Error::other("the host does not take the events");
        if is_sent { Ok(()) } else { Err(Error::System("describe the recording", unsent())) }
    }

    fn send_json(
        &self,
        file: &str,
        json: &impl Serialize,
        send: &mut dyn FnMut(&Piece<'_>) -> bool,
    ) -> Result<(), Error> {
        let text = serde_json::to_vec(json);
        let text = text.map_err(|e| Error::System("describe the recording", e.into()))?;
        self.send_all(file, &text, send)
    }

    /// Ends the recording: sends the remaining events and the kernel's counters.
    ///
    /// # Errors
    /// If the kernel's buffers cannot be read, or the counters cannot be sent. If one of these steps fails,
    /// the call still removes the instance.
    pub fn finish(mut self, send: &mut dyn FnMut(&Piece<'_>) -> bool) -> Result<Forwarded, Error> {
        let ended = self.send_rest(send);
        let counts = self.counts;
        self.remove();
        ended.map(|overwritten| Forwarded { overwritten, ..counts })
    }

    fn send_rest(&mut self, send: &mut dyn FnMut(&Piece<'_>) -> bool) -> Result<u64, Error> {
        self.instance.switch(false)?;
        let mut stats = Vec::new();
        // If a hypervisor stops a CPU within an event, the CPU may finish this event only after the instance
        // was switched off, and even after the pages were read.
        for _ in 0..LAST_READS {
            let mut before = None;
            while before != Some(self.counts.bytes) {
                before = Some(self.counts.bytes);
                self.send_pages(send)?;
            }
            stats = self.instance.stats()?;
            if stats.iter().all(|stats| stats.unread() == 0) {
                break;
            }
        }
        let names = self.instance.root().text("saved_cmdlines").unwrap_or_default();
        let overwritten = stats.iter().map(Stats::overwritten).fold(0, u64::saturating_add);
        let (_, reading) = self.clock();
        let (stolen_ms, cpus) = (stolen_ms(), Vec::new());
        self.send_json(END, &EndJson { stats, names, cpus, reading, stolen_ms }, send)?;
        Ok(overwritten)
    }

    /// Removes the instance and its note. If the instance cannot be removed, the next start tries again.
    fn remove(self) {
        let Forwarding { instance, owner, cpus, .. } = self;
        drop(cpus);
        if instance.remove().is_ok() {
            registry::remove(&owner.to_string());
        }
    }
}
