// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The options of a trace.dat that versions 6 and 7 have in common.

use super::bytes::Bytes;
use super::shift::{Correction, TimeShift};
use super::times::Scale;
use crate::clock::host::HostCounter;
use crate::error::Result;
use crate::inputs::ctf::KvmTsc;
use hypertrace_abi::event::cut;
use hypertrace_format::session_json::GuestTsc;
use hypertrace_format::trace_dat::{MAX_STEALS, MAX_TSCS, id};
use hypertrace_format::uuid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names of the kernel's counters of lost events: events that were overwritten, and events that found no
/// room.
const LOSSES: [&str; 3] = ["overrun", "commit overrun", "dropped events"];

/// Names of the kernel's counters of events that a reader has got or could still get.
const READABLE: [&str; 2] = ["read events", "entries"];

/// Maximum size of the name of a guest or of a clock, in bytes.
const MAX_NAME: usize = 256;

/// Maximum number of guests of a host's trace.
const MAX_GUESTS: usize = 1024;

/// A guest that was traced together with this host.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub name: String,
    /// Id of the guest's trace.
    pub trace: u64,
}

/// Map from ticks to nanoseconds: `ticks * mult >> shift`. The option's third number, an offset, is not
/// added, because trace-cmd does not add the offset either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TscToNs {
    pub mult: u32,
    pub shift: u32,
}

/// Step of a counter of stolen time in milliseconds: one tick of USER_HZ (`man 5 proc_stat`).
pub(crate) const STEAL_STEP_MS: u64 = 10;

/// A time in which a counter of stolen time increased. A hypervisor took the stolen time from the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steal<T> {
    /// Id of the CPU, or `None` for the counter of all CPUs.
    pub cpu: Option<u32>,
    pub from: T,
    pub to: T,
    pub ms: u64,
}

/// Contents of the options.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Name of the clock in version 6. Empty if the file has the name in another place.
    pub clock: Option<String>,
    /// Nanoseconds that are added to all times.
    pub offset_ns: i64,
    pub trace: Option<u64>,
    /// System, host name, release and machine of the recorded kernel.
    pub uname: Option<String>,
    pub shift: Option<Arc<TimeShift>>,
    pub guests: Vec<Guest>,
    /// For each name of a buffer, the counters of each CPU of the buffer.
    counters: BTreeMap<(Arc<str>, u32), Counters>,
    /// Name of the buffer to which the counters in the next options belong.
    counted: Arc<str>,
    pub tsc: Option<TscToNs>,
    /// Boot in which the trace was recorded. Only recordings of hypertrace have this value.
    pub boot_id: Option<u128>,
    /// Bound on the error of times that were converted to ticks, in nanoseconds.
    pub clock_bound_ns: u64,
    /// Two readings of the clock `mono_raw` in nanoseconds. Each reading comes with the ticks of the counter
    /// from which the kernel derives this clock.
    pub counter: Option<[(u64, u64); 2]>,
    /// Time that a hypervisor took from the machine's CPUs during the recording, in milliseconds.
    pub stolen_ms: Option<u64>,
    /// Times in which the counters of stolen time of the machine and of its CPUs increased, in ticks of the
    /// trace's clock.
    pub steals: Vec<Steal<u64>>,
    /// Whether `steals` is empty because the file's list has a bad entry or is too long.
    pub has_bad_steals: bool,
    /// TSCs that KVM gave to VMs. Each TSC comes with the host's ticks at which the recorder first and last
    /// saw the TSC.
    pub tscs: Vec<KvmTsc<u64>>,
    /// Whether `tscs` is empty because the file's list has a bad entry or is too long.
    pub has_bad_tscs: bool,
    /// Threads that were recorded at the beginning. `None` if the file has no such list.
    pub threads: Option<Vec<u32>>,
    /// Name of the buffer with the scheduling of all threads.
    pub all: Option<String>,
    /// Id of the guest's clock in the session, if the recording is of a guest's kernel.
    pub guest_clock: Option<u32>,
    /// Id of the client that sent the recording, if the recording is of a guest's kernel.
    pub guest_client: Option<u32>,
    /// Program that recorded the trace.
    pub version: String,
    /// How many CPUs the machine has.
    pub cpus: Option<u32>,
    /// Whether the file has a tracer's text. The reader does not show the text.
    pub has_text: bool,
    /// Ids of known options that are not used. `unknown` has the ids of options that are not known.
    pub unused: BTreeSet<u16>,
    pub unknown: BTreeSet<u16>,
}

/// The kernel's counters of the events of a CPU in a buffer, until the recording's end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Number of events that are lost to all readers.
    pub lost: u64,
    /// Number of events that a reader got or could get.
    pub readable: u64,
}

impl Options {
    /// Returns the kernel's counters of a CPU's part of a buffer, if the file has these counters.
    pub fn counters(&self, buffer: &str, cpu: u32) -> Option<Counters> {
        self.counters.get(&(buffer.into(), cpu)).copied()
    }

    /// Returns whether the file has the kernel's counters of a buffer. The second buffer, with the scheduling
    /// of all threads, does not count.
    pub fn has_counters(&self) -> bool {
        let of_all =
            |buffer: &str| Some(buffer) == self.all.as_deref().filter(|all| !all.is_empty());
        self.counters.keys().any(|(buffer, _)| !of_all(buffer))
    }

    /// Returns the scale that converts times of this clock with a session's counter. Returns `None` if there
    /// is no such scale. `is_tsc` says whether the session's counter is the TSC.
    pub fn scale(&self, clock: &str, counter: HostCounter, is_tsc: bool) -> Option<Scale> {
        match clock {
            super::TSC if is_tsc => Some(Scale::Counter(counter)),
            super::MONOTONIC_RAW => Some(Scale::Derived(counter, self.counter?)),
            _ => None,
        }
    }

    /// Reads an option that both versions have.
    pub fn take(&mut self, option: u16, data: &mut Bytes<'_>) -> Result<()> {
        match option {
            id::DATE | id::OFFSET => {
                let text = data.rest();
                let unit = if option == id::DATE { 1_000 } else { 1 };
                let added = signed_number(&text).and_then(|number| number.checked_mul(unit));
                let Some(added) = added else {
                    let shown = cut(&text, MAX_NAME);
                    return Err(data.damaged("an offset of times", format_args!("{shown:?}")));
                };
                self.offset_ns = self.offset_ns.saturating_add(added);
            }
            id::CPUSTAT => {
                let text = data.rest();
                let lines = || text.lines().filter_map(|line| line.split_once(':'));
                let values = lines().filter_map(|(key, n)| Some((key, n.trim().parse().ok()?)));
                let sum = |keys: &[&str]| {
                    let values = values.clone().filter(|(key, _)| keys.contains(key));
                    values.map(|(_, n)| n).fold(0, u64::saturating_add)
                };
                let buffer = lines().find(|(key, _)| *key == "Buffer");
                let buffer = buffer.map(|(_, name)| Arc::from(short_name(name.trim())));
                let cpu = values.clone().find(|(key, _)| *key == "CPU");
                match (buffer, cpu) {
                    // This option names the buffer of the options that follow. trace-cmd writes this option
                    // first.
                    (Some(buffer), None) => self.counted = buffer,
                    (buffer, Some((_, cpu))) => {
                        let cpu = u32::try_from(cpu).unwrap_or(u32::MAX);
                        let buffer = buffer.unwrap_or_else(|| self.counted.clone());
                        let counters = Counters { lost: sum(&LOSSES), readable: sum(&READABLE) };
                        self.counters.insert((buffer, cpu), counters);
                    }
                    (None, None) => {}
                }
            }
            id::TRACECLOCK => {
                self.clock = Some(chosen_clock(&data.rest()));
            }
            id::VERSION => {
                // `hypertrace 0.1.0; source=perf; boot_id=UUID; clock_bound_ns=N; counter=NS:TICKS,NS:TICKS;
                // stolen_ms=N; steals=FROM-TO:MS,CPU:FROM-TO:MS; tscs=PID-FD:OFFSET:RATIO:BITS:FROM:UNTIL;
                // threads=N,N; all=BUFFER`. Other recorders write only their version.
                let text = data.rest();
                self.version = cut(&text, MAX_NAME).to_owned();
                let words = || text.split("; ").filter_map(|word| word.split_once('='));
                let find = |name| words().find(|(key, _)| *key == name).map(|(_, value)| value);
                self.boot_id = find("boot_id").and_then(uuid::parse);
                self.clock_bound_ns =
                    find("clock_bound_ns").and_then(|ns| ns.parse().ok()).unwrap_or(0);
                self.counter = find("counter").and_then(readings);
                self.stolen_ms = find("stolen_ms").and_then(|ms| ms.parse().ok());
                let steals = all_of(find("steals"), MAX_STEALS, steal);
                self.has_bad_steals = steals.is_none();
                self.steals = steals.unwrap_or_default();
                let tscs = all_of(find("tscs"), MAX_TSCS, seen_tsc);
                self.has_bad_tscs = tscs.is_none();
                self.tscs = tscs.unwrap_or_default();
                self.all = find("all").map(short_name);
                let number = |name| find(name).and_then(|number| number.parse().ok());
                (self.guest_clock, self.guest_client) =
                    (number("guest_clock"), number("guest_client"));
                // Words that are not numbers are left out.
                self.threads = find("threads")
                    .map(|list| list.split(',').filter_map(|tid| tid.parse().ok()).collect());
            }
            id::TRACEID => self.trace = Some(data.u64("a trace's id")?),
            id::TIME_SHIFT => self.shift = Some(time_shift(data)?.into()),
            id::GUEST => {
                let name = String::from_utf8_lossy(data.text("a guest's name")?);
                // The name is cut, because each event of the guest is shown with the name.
                let name = cut(&name, MAX_NAME).to_owned();
                let trace = data.u64("a trace's id")?;
                if self.guests.len() == MAX_GUESTS {
                    return Err(data.damaged(&format!("at most {MAX_GUESTS} guests"), "one more"));
                }
                self.guests.push(Guest { name, trace });
            }
            id::TSC2NSEC => {
                let tsc = TscToNs { mult: data.u32("a factor")?, shift: data.u32("a shift")? };
                if tsc.mult == 0 || tsc.shift > 63 {
                    let found = format_args!("{} and {}", tsc.mult, tsc.shift).to_string();
                    return Err(data.damaged("a factor above 0 and a shift of at most 63", found));
                }
                self.tsc = Some(tsc);
            }
            id::UNAME => self.uname = Some(cut(&data.rest(), MAX_NAME).to_owned()),
            id::CPUCOUNT => self.cpus = Some(data.u32("a number of CPUs")?),
            id::HOOK | id::PROCMAPS | id::KALLSYMS => {
                self.unused.insert(option);
            }
            // The option is about the file's sections and has no facts about the recording.
            id::STRINGS => {}
            id::BUFFER_TEXT => self.has_text = true,
            _ => {
                self.unknown.insert(option);
            }
        }
        Ok(())
    }
}

/// Returns the name of the chosen clock. The text is the name itself or the contents of the file
/// `trace_clock`, which lists all clocks and marks the chosen clock.
pub(crate) fn chosen_clock(text: &str) -> String {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let name = chosen.map_or(text.trim_matches(['\0', ' ', '\n']), |(clock, _)| clock);
    short_name(name)
}

/// Parses a number with at most one sign, decimal or hexadecimal after `0x`.
fn signed_number(text: &str) -> Option<i64> {
    let text = text.trim();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, radix) = match unsigned.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None => (unsigned, 10),
    };
    // `from_str_radix` would take a second sign, so the first character must be a digit.
    let digits = Some(digits).filter(|digits| digits.starts_with(|c: char| c.is_ascii_hexdigit()));
    let number = i64::from_str_radix(digits?, radix).ok()?;
    Some(if text.starts_with('-') { -number } else { number })
}

/// Returns the name of a clock or of an instance, cut to a bounded length. The length is bounded because each
/// buffer keeps both names.
pub(crate) fn short_name(name: &str) -> String {
    cut(name, MAX_NAME).to_owned()
}

/// Parses `NS:TICKS,NS:TICKS`. Both numbers of the second pair must be larger than the numbers of the first
/// pair.
fn readings(text: &str) -> Option<[(u64, u64); 2]> {
    let reading = |text: &str| {
        let (ns, ticks) = text.split_once(':')?;
        Some((ns.parse().ok()?, ticks.parse().ok()?))
    };
    let (first, last) = text.split_once(',')?;
    let [first, last]: [(u64, u64); 2] = [reading(first)?, reading(last)?];
    (first.0 < last.0 && first.1 < last.1).then_some([first, last])
}

/// Parses a list. Returns `None` if the list has more than `most` words or a bad word, because an incomplete
/// list is useless.
fn all_of<T>(list: Option<&str>, most: usize, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let words = list.unwrap_or_default().split(',').filter(|word| !word.is_empty());
    let all: Vec<T> = words.take(most + 1).map(parse).collect::<Option<_>>()?;
    (all.len() <= most).then_some(all)
}

/// Parses `PID-FD:OFFSET:RATIO:BITS:FROM:UNTIL`.
fn seen_tsc(word: &str) -> Option<KvmTsc<u64>> {
    let parts: Vec<&str> = word.split(':').collect();
    let [vm, offset, ratio, bits, from, until] = parts[..] else { return None };
    let (pid, _fd) = vm.split_once('-')?;
    let tsc = GuestTsc {
        offset: offset.parse().ok()?,
        multiplier: ratio.parse().ok()?,
        shift: bits.parse().ok()?,
    };
    let (pid, from, until) = (pid.parse().ok()?, from.parse().ok()?, until.parse().ok()?);
    let seen = KvmTsc { pid, tsc, from, until };
    (tsc.is_possible() && seen.from <= seen.until).then_some(seen)
}

/// Parses `FROM-TO:MS` or `CPU:FROM-TO:MS`.
fn steal(word: &str) -> Option<Steal<u64>> {
    let (times, ms) = word.rsplit_once(':')?;
    let (cpu, times) = match times.split_once(':') {
        Some((cpu, times)) => (Some(cpu.parse().ok()?), times),
        None => (None, times),
    };
    let (from, to) = times.split_once('-')?;
    let steal = Steal { cpu, from: from.parse().ok()?, to: to.parse().ok()?, ms: ms.parse().ok()? };
    (steal.from <= steal.to).then_some(steal)
}

fn time_shift(data: &mut Bytes<'_>) -> Result<TimeShift> {
    let peer = data.u64("the peer's id")?;
    let flags = data.u32("flags")?;
    let cpus = data.u32("a number of CPUs")?;
    let mut shift = TimeShift { peer, interpolated: flags & 1 != 0, cpus: Vec::new() };
    // The option's size limits the number of turns, because each CPU takes at least 4 bytes of the option.
    for _ in 0..cpus {
        let count = data.u32("a number of time corrections")?;
        let mut list = |what| data.take(u64::from(count) * 8, what);
        let lists = [list("times")?, list("time offsets")?, list("time ratios")?];
        let numbers = lists.map(|list| list.chunks_exact(8).map(crate::value::number));
        let [times, offsets, ratios] = numbers;
        let samples = times.zip(offsets).zip(ratios).map(|((time, offset), ratio)| Correction {
            time,
            offset: offset as i64,
            ratio,
            fraction: 0,
        });
        shift.cpus.push(samples.collect());
    }
    // Older writers write no fractions.
    if data.left() > 0 {
        for sample in shift.cpus.iter_mut().flatten() {
            let fraction = data.u64("a number of fraction bits")?;
            if fraction > 60 {
                return Err(data.damaged("at most 60 fraction bits", fraction));
            }
            sample.fraction = fraction as u32;
        }
    }
    shift.cpus.iter_mut().for_each(|samples| samples.sort_by_key(|sample| sample.time));
    Ok(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_sign_at_most() {
        for (text, number) in [
            ("-0x8000000000000000", None),
            ("-0x-8000000000000000", None),
            ("--5", None),
            ("0x-5", None),
            ("+-5", None),
            ("-", None),
            ("", None),
            (" -12\n", Some(-12)),
            ("+7", Some(7)),
            ("-0x10", Some(-16)),
            ("9223372036854775807", Some(i64::MAX)),
        ] {
            assert_eq!(signed_number(text), number, "{text:?}");
        }
    }
}
