// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Traces of a kernel: `kernel.dat` of a session, and any trace.dat of trace-cmd.
//!
//! ```text
//! around    the kernel's times around reference points, which make clock maps narrower
//! guest_file the recordings of guests' kernels in a session, whose pages lie in its events
//! guest_mode whether the events of guests' kernels lie in guest mode of the host's threads
//! cpu_input the input of a CPU: its next event or loss
//! pages     the pages of a CPU, through a window
//! times     from ticks to Unix time
//! file      the parts of a trace.dat, versions 6 and 7
//! formats   the event formats in it
//! options   what both versions say about the trace
//! printk    the texts that events name by address
//! shown     the sessions whose hosts a trace shows
//! corrections a guest's clock, for readers without clock maps
//! shift     the map from a guest's clock to its host's
//! zstd      decompression with a bound
//! bytes     reading with the place of what is wrong
//! ```

mod around;
mod bytes;
mod corrections;
mod cpu_input;
mod file;
mod foreign;
mod formats;
mod guest_file;
mod guest_mode;
mod options;
mod pages;
mod printk;
mod shift;
mod shown;
mod times;
mod zstd;

pub(crate) use shown::{machine_of, shown_by};

use crate::clock::host::HostCounter;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::inputs::ctf::{ClockMaps, Domain, Offset, Session};
use crate::inputs::input::{Input, Time, nanoseconds};
use crate::inputs::names::Names;
use crate::inputs::regular::{self, not_regular, open_stream};
use cpu_input::CpuInput;
use file::{Buffer, Content, TraceFile};
pub use guest_file::{GuestKernel, PIECE_EVENT};
use hypertrace_abi::event::cut;
use hypertrace_format::error::Warning;
use hypertrace_format::number::counted;
use hypertrace_format::session_json;
use hypertrace_format::trace_dat::id;
use options::Counters;
pub(crate) use options::{STEAL_STEP_MS, Steal};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use times::{Scale, Times};

/// Name of the kernel's trace in a session's directory.
const FILE: &str = "kernel.dat";

/// Prefix of the names of a guest kernel's threads, if the trace belongs to a session of the guest's host.
const GUEST: &str = "guest-";

/// Name of the kernel's clock that shows the raw TSC.
const TSC: &str = "x86-tsc";

/// Name of the kernel's clock that shows CLOCK_MONOTONIC_RAW, which the kernel derives from the raw counter.
const MONOTONIC_RAW: &str = "mono_raw";

/// Names of clocks that count nanoseconds: clocks of the kernel, and trace-cmd's own clock `tsc2nsec`. The
/// empty name stands for the kernel's first clock, because old files do not name this clock.
const IN_NANOSECONDS: [&str; 9] =
    ["", "local", "global", "perf", "mono", "mono_raw", "boot", "tai", "tsc2nsec"];

/// A trace of a kernel: a trace.dat of version 6 or 7, compressed with zstd or not.
///
/// The memory holds the formats of the trace's events, the names of its threads, and one page for each CPU
/// (or one chunk if the trace is compressed). If a part is damaged and the rest can be read, the damage is a
/// [warning](KernelTrace::warnings).
#[derive(Debug)]
pub struct KernelTrace {
    file: TraceFile,
    /// Index of the session to which the trace belongs.
    session: Option<usize>,
    /// Name of the guest whose kernel was traced. The name comes from the trace of the guest's host.
    guest: Option<String>,
    /// Values that convert the times of each buffer.
    times: Vec<Times>,
}

/// A recording of the scheduling of all threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllThreads {
    /// Whether the recording is the trace of the requested events itself, and not a separate buffer.
    pub is_in_trace: bool,
    /// Unix time in nanoseconds up to which all events of the recording are known.
    pub until: i64,
    /// Whether the recording has the events that say which threads end because their process ends. The value
    /// is also true for a recording without wake-ups, because such a recording shows no waker.
    pub knows_ends: bool,
}

/// Counts of a kernel's trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct KernelStat {
    /// Name of the file, if the name is not `kernel.dat`.
    pub file: Option<String>,
    /// Id of the guest's clock in the session, if the trace is of a guest's kernel.
    pub clock: Option<u32>,
    /// Counts by CPU.
    pub cpus: Vec<CpuStat>,
    /// Whether all losses are known. If the kernel's counters are missing, the value is false, because the
    /// losses after a CPU's last page are then unknown.
    pub losses_known: bool,
    /// Facts from the file about the recording, each with its name. `system` comes from uname, `recorder` is
    /// the program that recorded the trace, and `not_used` lists the options that this library does not use.
    #[serde(with = "facts")]
    pub facts: Vec<(&'static str, String)>,
    /// Faults that did not prevent the reading of the trace.
    #[serde(skip)]
    pub warnings: Vec<Warning>,
}

mod facts {
    use serde::Serializer;

    pub fn serialize<S: Serializer>(
        facts: &[(&'static str, String)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(facts.iter().map(|(name, fact)| (name, fact)))
    }

    #[cfg(test)]
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(&'static str, String)>, D::Error> {
        let facts: std::collections::BTreeMap<String, String> =
            serde::Deserialize::deserialize(from)?;
        Ok(facts.into_values().map(|fact| ("", fact)).collect())
    }
}

/// Counts of a CPU in a kernel's trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct CpuStat {
    /// Name of the kernel's instance; empty for the first instance.
    pub buffer: Arc<str>,
    /// Id of the CPU.
    pub cpu: u32,
    /// Number of events in the CPU's pages.
    pub events: u64,
    /// Number of lost events that the kernel counted. A lost event was overwritten before it was read, found
    /// no room, or was read but not written.
    pub lost: u64,
    /// Number of places where events were lost and not counted.
    #[serde(rename = "uncounted_losses")]
    pub uncounted: u64,
}

/// An event that occurs in a kernel's trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventStat {
    /// Name of the event: `SYSTEM:EVENT`.
    pub name: Arc<str>,
    /// Number of such events.
    pub events: u64,
    /// Names of the event's own fields.
    pub fields: Vec<Arc<str>>,
}

impl KernelTrace {
    /// Opens a trace. The path may be a link. The times are nanoseconds of the trace's own clock, have no
    /// known relation to Unix time, and have no bound.
    ///
    /// # Errors
    /// If the file is no trace.dat of a 64-bit little-endian machine, or is damaged.
    pub fn open(path: &Path) -> Result<KernelTrace> {
        let opened = regular::given(path).map_err(|why| match not_regular(&why) {
            Some(_) => {
                let found = "a pipe or a device: the reader needs a file, in which it can go back";
                Error::NotATrace { path: path.to_owned(), found }
            }
            None => Error::io(path)(why),
        })?;
        Ok(KernelTrace::of_file(TraceFile::open(path, Content::File(opened))?))
    }

    fn of_file(file: TraceFile) -> KernelTrace {
        let (added, own_bound) = (file.options.offset_ns, file.options.clock_bound_ns);
        let times = |buffer: &Buffer| {
            let scale = match file.options.tsc {
                // The option with the TSC's scale is valid for buffers of any clock, as in trace-cmd's
                // reader.
                Some(tsc) => Scale::Tsc(tsc, added),
                None if IN_NANOSECONDS.contains(&&*buffer.clock) => Scale::Nanoseconds(added),
                None => Scale::Ticks,
            };
            Times { scale, shift: None, offset: None, bound: None, own_bound }
        };
        let times = file.buffers.iter().map(times).collect();
        KernelTrace { times, session: None, guest: None, file }
    }

    /// Opens `kernel.dat` of a session with this index, if the session has one. The trace gets the session's
    /// counter, so the session must already have its final counter ([`Session::open_all`]).
    ///
    /// # Errors
    /// As for [`KernelTrace::open`].
    pub fn of_session(number: usize, session: &Session) -> Result<Option<KernelTrace>> {
        let path = session.dir().join(FILE);
        if !path.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        // The file must not be a link, because a link could lead out of the session.
        let file = TraceFile::open(&path, Content::File(open_stream(&path)?))?;
        let mut trace = KernelTrace::of_file(file);
        trace.session = Some(number);
        trace.set_counter(&session.counter(), is_tsc(session))?;
        Ok(Some(trace))
    }

    /// Returns why the events of a session's kernel are missing, if the kernel's recording has not ended.
    pub(crate) fn unfinished(session: &Session) -> Option<Error> {
        let path = session.dir().join(session_json::KERNEL_FOLDER);
        let why = "a recording of the kernel that has not ended; if a kill ended it, `hypertrace info DIR` completes it";
        path.try_exists().unwrap_or(true).then(|| Error::NotSupported { path, why: why.into() })
    }

    /// Relates the trace's times to a counter. The times must be raw ticks of the TSC, or times of a clock
    /// that the trace relates to the counter. The times get a bound if the trace and the counter are known to
    /// be of the same boot.
    ///
    /// # Errors
    /// If the trace is of another boot.
    fn set_counter(&mut self, counter: &HostCounter, is_tsc: bool) -> Result<()> {
        let boots = (self.file.options.boot_id, counter.boot_id());
        let bound = match boots {
            (Some(own), Some(boot)) if own != boot => {
                return Err(Error::AnotherBoot { path: self.file.path.clone() });
            }
            (Some(_), Some(_)) => Some(self.file.options.clock_bound_ns),
            (own, _) => {
                let whose = if own.is_none() { "it" } else { "the session" };
                self.file.warnings.push(format!(
                    "{whose} does not say in which boot it was recorded: the error of its times is \
                     unknown"
                ).into());
                None
            }
        };
        for (buffer, times) in self.file.buffers.iter().zip(&mut self.times) {
            match self.file.options.scale(&buffer.clock, *counter, is_tsc) {
                Some(scale) => (times.scale, times.bound) = (scale, bound),
                None => self.file.warnings.push(format!(
                    "its clock {:?} is not the session's: its events have unknown times; record \
                     with the clock x86-tsc",
                    buffer.clock
                ).into()),
            }
        }
        Ok(())
    }

    /// If the trace and the session are of the same boot, makes the trace a trace of the session with this
    /// index. Raw ticks of the trace then count as ticks of the session's counter. Does nothing if the boots
    /// are not known to be the same.
    pub fn join(&mut self, number: usize, session: &Session) {
        let counter = session.counter();
        let options = &self.file.options;
        if options.boot_id.is_none() || options.boot_id != counter.boot_id() {
            return;
        }
        for (buffer, times) in self.file.buffers.iter().zip(&mut self.times) {
            if let Some(scale) = options.scale(&buffer.clock, counter, is_tsc(session)) {
                self.session = Some(number);
                times.scale = scale;
                times.bound = Some(options.clock_bound_ns);
            }
        }
    }

    /// Moves all events of the trace.
    pub fn add_offset(&mut self, offset: Offset) {
        for times in &mut self.times {
            times.offset = Some(times.offset.map_or(offset, |before| before.and(offset)));
        }
    }

    /// Puts the trace on the clock of a session's guest: the trace's raw ticks are ticks of this clock. The
    /// session's reference points relate the guest's clock to the host's clock.
    ///
    /// # Errors
    /// If the clock of the trace differs from the clock of the guest, or one of these clocks is not known.
    pub fn set_guest(&mut self, session: &Session, maps: &ClockMaps) -> Result<()> {
        let failed = |why: &str| Error::NoGuestClock {
            path: self.file.path.clone(),
            session: session.dir().to_owned(),
            why: why.into(),
        };
        let options = &self.file.options;
        let (id, readings) = (options.guest_clock, options.counter);
        let client = options.guest_client;
        // The guest's clock is computed once for buffers with the counter, and once for buffers with
        // CLOCK_MONOTONIC_RAW.
        let mut clocks = [None, None];
        for (buffer, times) in self.file.buffers.iter().zip(&mut self.times) {
            let readings = match &*buffer.clock {
                TSC => None,
                MONOTONIC_RAW => readings,
                other => {
                    let found = format!("the trace has the clock {other:?}; record with x86-tsc");
                    return Err(failed(&found));
                }
            };
            let is_raw = *buffer.clock == *MONOTONIC_RAW && readings.is_none();
            let known = &mut clocks[usize::from(is_raw)];
            let clock = match known.take() {
                Some(clock) => clock,
                None => maps.guest(session, (id, client), is_raw).map_err(failed)?,
            };
            times.scale = Scale::Guest(known.insert(clock).clone().into(), readings);
        }
        Ok(())
    }

    /// Puts guests' traces on the clock of their host. A guest's trace stays as it is if the trace has no
    /// corrections, or if the host's trace is not among `traces`.
    pub fn pair(traces: &mut [KernelTrace]) {
        // Each guest's trace is compared with all other traces, which is fast enough because there are few
        // files.
        for guest in 0..traces.len() {
            let options = &traces[guest].file.options;
            let (id, shift) = (options.trace, options.shift.clone());
            let host_of = |trace: &&KernelTrace| {
                shift.as_ref().is_some_and(|shift| trace.file.options.trace == Some(shift.peer))
            };
            let mut others = traces.iter().enumerate().filter(|(n, _)| *n != guest);
            let host = others.clone().map(|(_, trace)| trace).find(host_of);
            let scale = host.and_then(|host| Some(host.times.first()?.scale.clone()));
            let name = others.find_map(|(_, trace)| {
                let mut guests = trace.file.options.guests.iter();
                Some(guests.find(|guest| Some(guest.trace) == id)?.name.clone())
            });
            let trace = &mut traces[guest];
            trace.guest = name.or(trace.guest.take());
            for times in &mut trace.times {
                if let Some(scale) = &scale {
                    (times.scale, times.shift) = (scale.clone(), shift.clone());
                    times.bound = None;
                }
            }
        }
    }

    /// Warns of each trace whose times have no known relation to the other traces or to sessions.
    pub fn warn_of_unplaced(traces: &mut [KernelTrace], has_sessions: bool) {
        let is_placed = |trace: &KernelTrace| {
            trace.session.is_some()
                || trace.times.iter().any(|times| {
                    let by_guest = matches!(times.scale, Scale::Guest(..)) || times.shift.is_some();
                    // A trace in ticks has no times at all, so another warning reports this trace.
                    by_guest || times.offset.is_some() || matches!(times.scale, Scale::Ticks)
                })
        };
        let unplaced = traces.iter().enumerate().filter(|(_, trace)| !is_placed(trace));
        let mut unplaced = Vec::from_iter(unplaced.map(|(at, _)| at)).into_iter();
        let first = if has_sessions { None } else { unplaced.next() };
        let shown = "its times are shown unchanged; @TIME after the file's name places them";
        for at in unplaced {
            let why = match first {
                Some(first) => traces[at].differs(&traces[first]),
                None => Some("not known to be recorded in the same boot as the session".into()),
            };
            traces[at].file.warnings.extend(why.map(|why| format!("{why}: {shown}").into()));
        }
    }

    /// Returns the reason why the times of two traces may come from different clocks.
    fn differs(&self, other: &KernelTrace) -> Option<String> {
        let clock = |trace: &KernelTrace| Some(trace.file.buffers.first()?.clock.clone());
        let (own, others) = (&self.file.options, &other.file.options);
        let path = other.file.path.display();
        if let (Some(own), Some(others)) = (&own.uname, &others.uname)
            && own != others
        {
            let (own, others) = (cut(own, 64), cut(others, 64));
            return Some(format!("recorded on another system ({own:?}) than {path} ({others:?})"));
        }
        match (own.boot_id, others.boot_id) {
            (Some(own), Some(others)) if own != others => {
                Some(format!("recorded in another boot than {path}"))
            }
            _ if clock(self) != clock(other) => {
                Some(format!("recorded with another clock than {path}"))
            }
            (Some(_), Some(_)) => None,
            _ => Some(format!("not known to be recorded in the same boot as {path}")),
        }
    }

    /// If the trace's ticks are ticks of a session's counter, returns the trace's id, and the factor and
    /// shift that convert the ticks to nanoseconds.
    pub fn on_counter(&self) -> Option<(u64, (u32, u32))> {
        let is_counter = |times: &Times| matches!(times.scale, Scale::Counter(_));
        let tsc = self.file.options.tsc.filter(|_| self.times.iter().all(is_counter))?;
        Some((self.file.options.trace?, (tsc.mult, tsc.shift)))
    }

    /// Returns how many CPUs the machine is known to have: the largest id of a recorded CPU plus one.
    pub fn cpus(&self) -> u32 {
        let cpus = self.file.buffers.iter().flat_map(|buffer| &buffer.cpus);
        cpus.map(|cpu| cpu.number.saturating_add(1)).max().unwrap_or(0)
    }

    /// Returns the release of the recorded kernel from uname(2), if the recording has the release.
    pub fn release(&self) -> Option<&str> {
        self.file.options.uname.as_deref()?.split_ascii_whitespace().nth(2)
    }

    /// Returns the trace's file.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Returns the time in milliseconds that a hypervisor took from all CPUs of the machine during the
    /// recording, or `None` if this time is not known. No event shows when the hypervisor took the time.
    pub fn steal_ms(&self) -> Option<u64> {
        self.file.options.stolen_ms
    }

    /// Returns an upper limit of the true stolen time: [`steal_ms`](Self::steal_ms) plus one step of the
    /// counter.
    pub fn steal_at_most_ms(&self) -> Option<u64> {
        self.steal_ms().map(|ms| ms.saturating_add(STEAL_STEP_MS))
    }

    /// Returns the times in which the recorder saw a counter of stolen time increase. The counter is the
    /// machine's counter or a CPU's counter. The times are Unix times in nanoseconds.
    pub(crate) fn steals(&self) -> Vec<Steal<i64>> {
        let ns = |ticks| self.of_counter(ticks).map(nanoseconds);
        let in_ns = |steal: &Steal<u64>| {
            let Steal { cpu, from, to, ms } = *steal;
            Some(Steal { cpu, from: ns(from)?, to: ns(to)?, ms })
        };
        self.file.options.steals.iter().filter_map(in_ns).collect()
    }

    /// Returns the time of a reading of the host's counter, even if the trace has another clock.
    fn of_counter(&self, ticks: u64) -> Option<Time> {
        let times = self.times.first()?;
        Some(match times.scale {
            Scale::Derived(counter, _) => counter.unix(ticks),
            _ => times.at(&mut (0, 0), 0, ticks).0,
        })
    }

    /// Returns whether the recording has the threads of a process.
    fn follows(&self, pid: u32) -> bool {
        self.threads().is_none_or(|threads| threads.contains(&pid))
    }

    /// Returns the threads in the kernel's filter when the recording began, or `None` if the trace has no
    /// such list. Threads that these threads start are recorded too.
    pub(crate) fn threads(&self) -> Option<&[u32]> {
        self.file.options.threads.as_deref()
    }

    /// Returns the last name of a thread in the trace's list of names. The thread's program chose the name.
    pub(crate) fn thread_name(&self, tid: u32) -> Option<&str> {
        self.file.comm(tid)
    }

    /// Returns whether the scheduler's switches were recorded. Without switches, nothing proves that a thread
    /// had a CPU.
    pub fn has_switches(&self) -> bool {
        self.events().any(|name| ["sched:sched_switch", "perf:switch_in"].contains(&&*name))
    }

    /// Returns the index of the session to which the trace belongs.
    pub fn session(&self) -> Option<usize> {
        self.session
    }

    /// Returns whether the trace is of a guest's kernel, on the guest's counter.
    pub fn is_of_guest(&self) -> bool {
        self.is_in_session_of_host()
            || self.times.iter().any(|times| matches!(times.scale, Scale::Guest(..)))
    }

    /// Returns the id of the guest's clock in the session, if the trace is of a guest's kernel.
    pub fn guest_clock(&self) -> Option<u32> {
        self.file.options.guest_clock
    }

    /// Returns whether the trace is of a guest's kernel and belongs to a session of the guest's host.
    fn is_in_session_of_host(&self) -> bool {
        self.session.is_some() && self.file.options.guest_clock.is_some()
    }

    /// Returns a buffer whose times are ticks of unknown length, if there is one.
    fn in_ticks(&self) -> Option<(&Buffer, &Times)> {
        let mut buffers = self.file.buffers.iter().zip(&self.times);
        buffers.find(|(_, times)| matches!(times.scale, Scale::Ticks))
    }

    /// Returns the name of a clock that counts ticks of unknown length, if the file has events of such a
    /// clock. These events have no times.
    pub fn clock_in_ticks(&self) -> Option<&str> {
        self.in_ticks().map(|(buffer, _)| &*buffer.clock)
    }

    /// Returns the faults of the file that did not prevent its opening.
    pub fn warnings(&self) -> impl Iterator<Item = Warning> {
        let path = self.file.path.display();
        let in_ticks = self.in_ticks().map(|(buffer, times)| {
            format!(
                "its clock {:?} counts ticks of unknown length: times are ticks, which order its own events alone{}",
                buffer.clock,
                times.offset.map_or("", |_| "; @TIME has no meaning for them")
            )
            .into()
        });
        let warnings = self.file.warnings.iter().cloned().chain(in_ticks);
        warnings.map(move |warning: Warning| match self.is_in_session_of_host() {
            true => format!("{path}: {warning}").into(),
            false => warning.of(&path),
        })
    }

    /// Iterates over the names of the events that the file describes: `SYSTEM:EVENT`.
    pub fn events(&self) -> impl Iterator<Item = String> {
        self.file.formats.names()
    }

    /// Returns the format with this index, if an event of that format was read before.
    pub(crate) fn format(&self, number: u32) -> Option<&Format> {
        self.file.formats.numbered(number)
    }

    /// Iterates over the names of the events' fields.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.file.formats.fields()
    }

    /// Returns the name of the guest, or of the file.
    pub(crate) fn name(&self) -> String {
        let file = || self.file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.guest.clone().unwrap_or_else(file)
    }

    /// Counts all events.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn stat(&self) -> Result<KernelStat> {
        let (clock, losses_known) = (self.guest_clock(), self.file.options.has_counters());
        let (warnings, facts) = (self.warnings().collect(), self.facts());
        let mut stat = KernelStat { clock, losses_known, warnings, facts, ..KernelStat::default() };
        let (shift, mut outside) = (self.file.options.shift.as_deref(), 0u64);
        for (buffer, times) in self.file.buffers.iter().zip(&self.times) {
            for (cpu, mut input) in self.inputs_of((buffer, times), 0, "") {
                let buffer = buffer.name.clone();
                let counters = self.file.options.counters(&buffer, cpu);
                let mut counts = CpuStat { buffer, cpu, ..CpuStat::default() };
                while input.read()? {
                    counts.events += 1;
                    outside += u64::from(shift.is_some_and(|s| s.is_outside(cpu, input.raw())));
                    counts.add_lost(&mut input);
                }
                counts.add_lost(&mut input);
                // The kernel's counters decide, because the pages do not show losses at a buffer's end, and
                // show some other losses without a number.
                if let Some(Counters { lost, .. }) = counters
                    && lost >= counts.lost.max(1)
                {
                    (counts.lost, counts.uncounted) = (lost, 0);
                }
                // If fewer events are in the file than a reader got, the rest was not written, perhaps
                // because the disk was full.
                let readable = counters.map_or(0, |counters| counters.readable);
                counts.lost = counts.lost.saturating_add(readable.saturating_sub(counts.events));
                stat.warnings.extend(input.warnings());
                stat.cpus.push(counts);
            }
        }
        if let Some(shift) = shift {
            let lies = if shift.interpolated {
                "on the line of the nearest two"
            } else {
                "with the nearest one"
            };
            let events = counted(outside, "event");
            let fact = format!("{events} before the first or after the last one, {lies}");
            stat.facts.push(("corrections", fact));
        }
        Ok(stat)
    }

    /// Returns the facts that the file has about the recording.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let options = &self.file.options;
        let not_used = options.unused.iter().filter_map(|id| match *id {
            id::HOOK => Some("HOOK"),
            id::PROCMAPS => Some("PROCMAPS"),
            id::KALLSYMS => Some("KALLSYMS"),
            _ => None,
        });
        let mut clocks: Vec<&str> = self.file.buffers.iter().map(|b| &*b.clock).collect();
        clocks.dedup();
        // Recordings of hypertrace have more values after a semicolon.
        let recorder = options.version.split(';').next().unwrap_or_default();
        let facts = [
            ("system", options.uname.clone().unwrap_or_default()),
            ("recorder", recorder.to_owned()),
            ("cpus", options.cpus.map_or(String::new(), |cpus| cpus.to_string())),
            ("clock", clocks.join(", ")),
            ("not_used", Vec::from_iter(not_used).join(", ")),
        ];
        facts.into_iter().filter(|(_, fact)| !fact.is_empty()).collect()
    }

    /// Counts the events of each name. Leaves out events that do not occur. The function also returns the
    /// faults that did not prevent the reading of the trace.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn event_stats(&self) -> Result<(Vec<EventStat>, Vec<Warning>)> {
        let mut warnings = Vec::from_iter(self.warnings());
        let mut counts: HashMap<*const Format, (&Format, u64)> = HashMap::new();
        for (_, mut input) in self.inputs(0, "") {
            while input.read()? {
                if let Some(format) = input.format() {
                    counts.entry(format).or_insert((format, 0)).1 += 1;
                }
            }
            warnings.extend(input.warnings());
        }
        let stat = |(format, events): (&Format, u64)| {
            let fields = format.own_fields().cloned().collect();
            EventStat { name: format.name.clone(), events, fields }
        };
        let mut stats = Vec::from_iter(counts.into_values().map(stat));
        stats.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((stats, warnings))
    }

    /// Returns the names of the first `most` events of each CPU.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn first_names(&self, most: usize) -> Result<HashSet<Arc<str>>> {
        let mut names = HashSet::new();
        for (_, mut input) in self.inputs(0, "") {
            let mut read = 0;
            while read < most && input.read()? {
                read += 1;
                if let Some(name) = input.name().filter(|name| !names.contains(*name)) {
                    names.insert(name.clone());
                }
            }
        }
        Ok(names)
    }

    /// Returns the Unix time in nanoseconds up to which the events of all CPUs are known. Without losses,
    /// this is the time of the last event of any CPU. If a CPU lost events at its end, the result is at most
    /// the time of this CPU's last event. If the last page of a CPU is damaged, the page's times may be
    /// wrong, so the last event of the pages before counts. Returns `None` if there are no events.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn end(&self) -> Result<Option<i64>> {
        self.end_of(&mut self.file.buffers.iter().zip(&self.times))
    }

    /// Returns the recording of all threads, if there is one. The recording is a separate buffer or the whole
    /// trace.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn all_threads_until(&self) -> Result<Option<AllThreads>> {
        let until = match (&self.file.cpus, self.times.first()) {
            (Some(buffer), Some(times)) => self.end_of(&mut [(buffer, times)].into_iter())?,
            _ if self.file.options.all.as_deref() == Some("") || self.is_by_perf() => self.end()?,
            _ => None,
        };
        let is_in_trace = self.file.cpus.is_none();
        let has = |name: &&str| self.events().any(|event| event == *name);
        let ends = ["sched:sched_process_exit", "signal:signal_deliver", "task:task_newtask"];
        let knows_ends = !has(&"sched:sched_waking") || ends.iter().all(has);
        Ok(until.map(|until| AllThreads { is_in_trace, until, knows_ends }))
    }

    /// Returns whether the trace has the switches of all threads of the machine. A trace without a list of
    /// threads counts as a trace of all threads.
    pub fn has_all_threads(&self) -> bool {
        let options = &self.file.options;
        let says_all = options.all.as_deref() == Some("");
        self.file.cpus.is_some() || says_all || options.threads.is_none() && !self.is_by_perf()
    }

    /// Returns whether perf recorded the trace. Such a trace shows when a thread had a CPU.
    fn is_by_perf(&self) -> bool {
        self.events().any(|name| name == "perf:switch_in")
    }

    fn end_of(&self, buffers: &mut dyn Iterator<Item = (&Buffer, &Times)>) -> Result<Option<i64>> {
        let mut end = None;
        let mut known = i64::MAX;
        for (buffer, times) in buffers {
            for cpu in &buffer.cpus {
                let counted = self.file.lost(buffer, cpu.number);
                let read = |cpu| {
                    let mut input = CpuInput::new(&self.file, times, 0, "", (buffer, cpu));
                    let mut lost: u64 = 0;
                    while input.read()? {
                        lost = lost.saturating_add(input.take_missed().unwrap_or(0));
                    }
                    Ok((input, lost))
                };
                let mut last = *cpu;
                // Only the last page is read, because only the last page can end with a loss: a loss in an
                // earlier page is followed by later events.
                if !buffer.is_compressed && cpu.len > 0 && counted == 0 {
                    let page = buffer.page_size as u64;
                    let before = (cpu.len - 1) / page * page;
                    (last.at, last.len) = (cpu.at + before, cpu.len - before);
                }
                let (mut input, mut lost) = read(last)?;
                if input.is_damaged() && last.len < cpu.len {
                    (input, lost) = read(*cpu)?;
                }
                let after = input.take_missed();
                end = end.max(input.last());
                if counted > lost
                    || after.is_some()
                    || cpu.is_cut
                    || input.is_cut()
                    || input.is_damaged()
                {
                    known = known.min(input.last().unwrap_or(i64::MIN));
                }
            }
        }
        Ok(end.map(|end| end.min(known)))
    }

    /// Returns the input of each CPU that has pages, with the CPU's id.
    fn inputs<'a>(
        &'a self,
        session: usize,
        prefix: &str,
    ) -> impl Iterator<Item = (u32, CpuInput<'a>)> {
        let buffers = self.file.buffers.iter().zip(&self.times);
        buffers.flat_map(move |buffer| self.inputs_of(buffer, session, prefix))
    }

    fn inputs_of<'a>(
        &'a self,
        (buffer, times): (&'a Buffer, &'a Times),
        session: usize,
        prefix: &str,
    ) -> impl Iterator<Item = (u32, CpuInput<'a>)> {
        let cpus = buffer.cpus.iter().filter(|cpu| cpu.len > 0);
        cpus.map(move |cpu| {
            let mut input = CpuInput::new(&self.file, times, session, prefix, (buffer, *cpu));
            input.is_by_guest = self.is_in_session_of_host();
            (cpu.number, input)
        })
    }
}

impl CpuStat {
    fn add_lost(&mut self, input: &mut CpuInput<'_>) {
        while let Some(missed) = input.take_missed() {
            self.lost = self.lost.saturating_add(missed);
            self.uncounted += u64::from(missed == 0);
        }
    }
}

/// Returns whether the clock of a session's host is the TSC.
fn is_tsc(session: &Session) -> bool {
    let mut clocks = session.json().clocks.iter();
    clocks.any(|clock| clock.domain == Domain::Host && clock.kind == "tsc")
}

/// Returns the inputs of a trace.
pub(crate) fn inputs<'a>(
    session: usize,
    (number, trace): (usize, &'a KernelTrace),
    names: &Names,
) -> Vec<Box<dyn Input + 'a>> {
    let mut prefix = names.prefix(session).to_owned();
    if trace.is_in_session_of_host() {
        prefix.push_str(GUEST);
    }
    let inputs = trace.inputs(session, &prefix);
    let boxed = |(_, mut input): (u32, CpuInput<'a>)| {
        input.trace = number;
        Box::new(input) as Box<dyn Input>
    };
    inputs.map(boxed).collect()
}

/// Returns the inputs that have the scheduling of the trace with this index. If the trace has a buffer of all
/// threads, only the inputs of this buffer are returned. Otherwise, all inputs of the trace are returned.
pub(crate) fn inputs_of_scheduling<'a>(
    number: usize,
    trace: &'a KernelTrace,
) -> Vec<Box<dyn Input + 'a>> {
    if trace.file.cpus.is_some() {
        return inputs_of_cpus(number, trace);
    }
    let boxed = |(_, mut input): (u32, CpuInput<'a>)| {
        input.trace = number;
        Box::new(input) as Box<dyn Input>
    };
    trace.inputs(0, "").map(boxed).collect()
}

/// Returns the inputs of the buffer of all threads, for the trace with this index. If the trace has no such
/// buffer, there are no inputs. A loss is placed right after the event before the loss, so that the state of
/// the CPU counts as unknown from there on.
pub(crate) fn inputs_of_cpus<'a>(
    number: usize,
    trace: &'a KernelTrace,
) -> Vec<Box<dyn Input + 'a>> {
    let both = trace.file.cpus.as_ref().zip(trace.times.first());
    let inputs = both.into_iter().flat_map(|both| trace.inputs_of(both, 0, ""));
    let boxed = |(_, mut input): (u32, CpuInput<'a>)| {
        (input.trace, input.tells_losses_early) = (number, true);
        Box::new(input) as Box<dyn Input>
    };
    inputs.map(boxed).collect()
}
