// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regions of interest: the time between two events of a client, and what the time was spent on.
//!
//! ```no_run
//! # fn main() -> Result<(), hypertrace_timeline::Error> {
//! use hypertrace_timeline::regions::{Options, Part, Regions};
//! use hypertrace_timeline::{Given, Recording};
//!
//! let recording = Recording::open(&[Given::new("session")])?;
//! let regions = Regions::of(&recording, &Options::default())?;
//! for group in &regions.groups {
//!     println!("{}: {} regions, p99 {} ns", group.name, group.count, group.quantile_ns(0.99));
//!     // The parts of all its regions, which add up to their durations.
//!     for (part, ns) in group.total.times.iter().filter(|(_, ns)| *ns > 0) {
//!         println!("  {} {ns} ns", group.label(part));
//!     }
//! }
//! for sample in regions.samples() {
//!     let group = &regions.groups[usize::from(sample.group)];
//!     let blocked = sample.times.get(Part::Blocked);
//!     println!("{} {}: {blocked} of {} ns blocked", group.name, sample.id, sample.duration_ns());
//! }
//! # Ok(())
//! # }
//! ```

// collect   one pass over the timeline, with the regions that are open
// breakdown how the time of regions divides, with names
// begins    the events that begin regions
// spans     spans of the crate tracing, and their polls
// choice    which of the selected regions are shown
// groups    the groups of regions, by session, name and value
// followed  the threads in a kernel's filter
// host      the threads of a session's host, and the clients that they run
// pairs     a client's open regions
// roles     the events that begin and end regions
// marks     the events that say what a thread does
// cpus      which thread each CPU had, and what woke threads
// path      critical paths of regions
// steps     the steps of critical paths, and their sums
// processes the thread that ended a process
// causes    what threads waited for
// account   how a host thread's time divides into parts
// parts     the parts, and sums over them
// tally     the regions that wait for proven time
// vcpus     what the host's kernel proves of a guest's CPUs
// scheduling switches and wake-ups, without regions
// steals    the times in which a hypervisor took the machine's CPUs
// store     the regions that were found
// lives     tells apart threads that had the same number one after another
// members   JSON members of causes
// lines     the summary of all groups together, and the lines of intervals
// lanes     what all threads did around chosen regions
// summary   quantiles, and breakdowns of single regions
// sums      exact sums over the regions between two quantiles
// children  regions inside others
// waited    how long threads waited in regions
// histogram numbers of durations in steps
mod account;
mod begins;
mod beyond;
mod breakdown;
mod causes;
mod children;
mod choice;
mod collect;
mod cpus;
mod followed;
mod groups;
mod histogram;
mod host;
mod lanes;
mod lines;
mod lives;
mod marks;
mod members;
mod modes;
mod pairs;
mod parts;
mod path;
mod processes;
mod region_path;
mod roles;
mod scheduling;
mod spans;
mod steals;
mod steps;
mod store;
mod summary;
mod sums;
mod tally;
mod vcpus;
mod waited;
mod walked;

pub(crate) use begins::Begins;
pub use begins::Region;
pub use breakdown::{Breakdown, CauseEntry, Exit, PathStep, Wait};
pub use causes::{Cause, CauseNumber, Unknown};
pub use children::Child;
pub use choice::{Choice, LeftOut};
pub use groups::EMPTY;
pub use histogram::{Histogram, Step};
pub use lanes::{Lane, Lanes, Turn, Window};
pub use lines::{IntervalLine, Summary};
pub use parts::{Evidence, Exits, Interval, PARTS, Part, Reason, Stream, Times};
pub use roles::{fields, names};
pub use scheduling::{Scheduled, Scheduling, Step as SchedulingStep, Task};
pub use store::Sample;
pub use summary::{Breakdowns, ByValue, Group, Own};
pub use sums::Sums;
pub use waited::Waited;

use crate::clock::FRACTION;
use crate::error::Result;
use crate::inputs::ctf::Session;
use crate::recording::Recording;
use hypertrace_format::error::Warning;
use hypertrace_format::number::grouped;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Maximum number of regions that are kept, of 190 bytes each.
pub const MAX_REGIONS: usize = 10_000_000;
/// Maximum number of groups.
pub const MAX_GROUPS: usize = 10_000;

/// Which regions are wanted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Events that begin and end a region.
    pub select: Select,
    /// Which of the regions are shown.
    pub choice: Choice,
    /// Value that groups the regions of a name.
    pub by: By,
    /// Whether the intervals of all threads are kept for [`Regions::steps`] and [`Regions::lanes`]: at least
    /// the last 4,194,304, of 32 bytes each.
    pub keeps_intervals: bool,
    /// Whether regions get a critical path. If true, the time of regions with `any_client` is divided along
    /// the path.
    pub has_paths: bool,
    /// Maximum number of regions; `None`: [`MAX_REGIONS`].
    pub most_regions: Option<usize>,
    /// Threads of the host whose intervals are kept even if no region is on the thread. Each entry has the
    /// thread's id, and the vCPU's index if the thread runs a vCPU.
    pub threads: Vec<(u32, Option<u32>)>,
}

/// Events that begin and end a region.
#[derive(Clone, Debug)]
pub enum Select {
    /// Events `NAME_begin` and `NAME_end` with the same `id`, for these names, or for all names if the list
    /// is empty.
    Names(Vec<String>),
    /// An event of the first name, and the next event of the second name from the same client, or from the
    /// same thread of the VMM. If there are several events of the first name, the last of these events begins
    /// the region.
    Between(String, String),
}

impl Default for Select {
    fn default() -> Select {
        Select::Names(Vec::new())
    }
}

/// Value that groups the regions of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// All regions of a name are one group.
    #[default]
    Nothing,
    /// The thread of the program or of the guest, or the vCPU of a bare guest, as
    /// [`Source::text`](crate::Source::text) names it.
    Thread,
    /// The thread of the host that ran the client.
    Vcpu,
    /// A field of the event that ends the region. If this event lacks the field, the value comes from the
    /// event that begins the region.
    Field(String),
}

impl By {
    /// Returns the key of [`ByValue`]; empty if regions have no value.
    pub fn key(&self) -> &str {
        match self {
            By::Nothing => "",
            By::Thread => "thread",
            By::Vcpu => "vcpu",
            By::Field(field) => field,
        }
    }
}

/// Why a region is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum NotCounted {
    /// No event ended the region.
    BeginWithoutEnd,
    /// No event began the region.
    EndWithoutBegin,
    /// A second region with the same client and id began before the first region ended.
    IdTwice,
    /// Events of the region's client, VMM or kernel were lost during the region.
    LostEvents,
    /// The client's clock jumped during the region.
    ClockJump,
    /// The region began on one thread of the host and ended on another thread.
    Migration,
    /// The kernel's events of the region's thread were not recorded when the region began or when it ended.
    KernelNotRecorded,
    /// The maximum number of regions was already reached when the region ended.
    TooMany,
}

impl NotCounted {
    /// All kinds, with their names.
    pub const ALL: [(NotCounted, &str); 8] = [
        (NotCounted::BeginWithoutEnd, "begin_without_end"),
        (NotCounted::EndWithoutBegin, "end_without_begin"),
        (NotCounted::IdTwice, "id_twice"),
        (NotCounted::LostEvents, "lost_events"),
        (NotCounted::ClockJump, "clock_jump"),
        (NotCounted::Migration, "migration"),
        (NotCounted::KernelNotRecorded, "kernel_not_recorded"),
        (NotCounted::TooMany, "too_many"),
    ];
}

/// What a thread did for some time.
#[derive(Debug)]
#[non_exhaustive]
pub struct ThreadInterval<'a> {
    /// Index of the session.
    pub session: usize,
    /// Id of the thread.
    pub tid: u32,
    /// Whether the thread belongs to a guest whose own kernel was recorded. If false, the thread belongs to
    /// the host.
    pub is_of_guest: bool,
    /// Name of the thread, if it is known. The program chooses the name: escape it.
    pub name: Option<&'a str>,
    /// Interval, and what the thread did in this interval. Times are Unix times in nanoseconds.
    pub interval: &'a Interval,
    /// Reason of the exit, if known. Time in the kernel, time in the VMM, and waits have a reason.
    pub reason: Option<&'a str>,
    /// What the thread waited for, if the part [has causes](Part::has_causes).
    pub cause: Option<Cause>,
}

/// A CPU of a guest, and the thread of the host that runs it. All events of the guest's kernel on the CPU lie
/// in times at which this thread was in guest mode, and no other thread has this property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ProvenVcpu {
    /// Index of the session.
    pub session: usize,
    /// Id of the guest's clock.
    pub clock: u32,
    /// Number that the guest gives the CPU.
    pub cpu: u16,
    /// Id of the thread.
    pub tid: u32,
    /// Unix time in nanoseconds from which on the proof does not count, because an event refuted the proof;
    /// `None` if no event refuted the proof.
    pub until_ns: Option<i64>,
}

/// A function that is called with each interval.
type Sink<'a> = &'a mut dyn FnMut(&ThreadInterval<'_>);

/// The regions of sessions.
#[derive(Debug)]
#[non_exhaustive]
pub struct Regions {
    /// Groups by name, then by session and value. Groups of other names are last.
    pub groups: Vec<Group>,
    /// Names of the sessions: the names of their directories, with a number if two names are the same.
    pub sessions: Vec<String>,
    /// Names of exits' reasons, by [`Interval::reason`].
    pub reasons: Vec<Arc<str>>,
    /// What threads waited for, by [`Interval::cause`].
    pub causes: Vec<CauseEntry>,
    /// Names of events, by [`Evidence::event`]. Guests choose these names: escape them.
    pub events: Vec<Arc<str>>,
    /// Faults that did not prevent the reading of the inputs, and facts that could not be known.
    pub warnings: Vec<Warning>,
    /// Whether there are more regions than are kept, so that later regions are missing.
    /// [`NotCounted::TooMany`] counts the missing regions, except for regions that would only be children.
    pub is_cut: bool,
    /// Whether regions have more than [`MAX_GROUPS`] values. Regions with further values are in groups of
    /// other values.
    pub has_others: bool,
    /// Whether regions have more than [`MAX_GROUPS`] names. Regions with further names are in the group
    /// `other names` of their session.
    pub has_other_names: bool,
    /// For each [`LeftOut`], the number of regions that are left out for this reason.
    pub left_out: [u64; LeftOut::ALL.len()],
    /// Times that threads waited in the regions.
    pub waited: Waited,
    /// Whether a kernel's trace says what a thread of a region did.
    pub has_kernel: bool,
    /// Time that an outer hypervisor took from the hosts' CPUs while their kernels were recorded, in
    /// milliseconds; `None` if no kernel's trace gives this time.
    pub steal_ms: Option<u64>,
    /// Maximum of `steal_ms` within the error of its counter, in milliseconds.
    pub steal_at_most_ms: u64,
    /// Time that the host took from guests' CPUs, as the guests' kernels counted it, in milliseconds. The sum
    /// leaves out a guest if the host's kernel divides the guest's time, because the parts then show this
    /// time. `None` if no guest's kernel gives this time.
    pub guest_steal_ms: Option<u64>,
    /// Guests' CPUs for which the thread of the host is known. The list is empty unless the kernels of the
    /// guests and of their host were recorded.
    pub vcpus: Vec<ProvenVcpu>,
    /// Threads with kept intervals, for each session.
    threads: Vec<Vec<lanes::Logged>>,
    /// For each session, whether the events of all threads of the session's machine were recorded.
    has_all_threads: Vec<bool>,
    store: store::Store,
}

impl Regions {
    /// Reads the sessions of a recording and the traces of their kernels.
    ///
    /// # Errors
    /// If a stream or a trace is damaged.
    pub fn of(recording: &Recording, options: &Options) -> Result<Regions> {
        collect::collect(recording, options, None)
    }

    /// Reads the same as [`Regions::of`], and hands over what all threads of the sessions did. The intervals
    /// of one thread come in order of time. The intervals of several threads come as they become known.
    /// Intervals that were handed over are not kept.
    ///
    /// # Errors
    /// If a stream or a trace is damaged.
    pub(crate) fn with_intervals<'a>(
        recording: &Recording,
        options: &'a Options,
        sink: &'a mut dyn FnMut(&ThreadInterval<'_>),
    ) -> Result<Regions> {
        collect::collect(recording, options, Some(sink))
    }

    /// If regions are missing because there are too many, returns a line about the missing regions. The
    /// warnings have this line too.
    pub fn cut(&self) -> Option<String> {
        let missing =
            self.groups.iter().map(|group| group.not_counted[NotCounted::TooMany as usize]);
        let missing = grouped(missing.fold(0, u64::saturating_add));
        self.is_cut.then(|| {
            let kept = grouped(self.store.len() as u64);
            format!(
                "there are more than {kept} regions: {missing} that ended later are left out of all numbers, \
                 and some may be missing inside other regions; choose fewer by name or by time"
            )
        })
    }

    /// Iterates over all counted regions, in the order of their ends.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.store.iter()
    }

    /// Iterates over all counted regions, in the order of their beginnings. Of regions that begin together,
    /// the longest comes first; among regions that also end together, the outermost comes first.
    pub fn by_begin(&self) -> impl Iterator<Item = &Sample> {
        self.store.by_begin().into_iter().map(|index| self.store.get(index))
    }

    /// Returns the id and the name of the thread that a region was on, if that thread is known. The program
    /// chooses the name: escape it.
    pub fn thread(&self, sample: &Sample) -> Option<(u32, Option<&str>)> {
        let of_session = self.threads.get(usize::from(sample.session))?;
        of_session.get(usize::from(sample.thread)).map(lanes::Logged::thread)
    }

    /// Iterates over the regions of a group, the slowest first. Each region comes with its exits by reason;
    /// `None` if the exits were not kept because there are too many regions.
    pub fn slowest<'a>(
        &'a self,
        group: &'a Group,
    ) -> impl Iterator<Item = (&'a Sample, Option<&'a [(Reason, Exits)]>)> {
        group.order.iter().rev().map(|index| {
            let longest = group.longest.as_ref().filter(|(longest, _)| longest == index);
            let detail = self.store.detail(*index).or(longest.map(|(_, detail)| detail));
            (self.store.get(*index), detail.map(|detail| &*detail.exits))
        })
    }

    /// Returns the name of an exit's reason.
    pub fn reason(&self, number: Reason) -> &str {
        self.reasons.get(usize::from(number)).map_or("other", |name| name)
    }

    /// Returns a cause.
    pub fn cause(&self, number: CauseNumber) -> &Cause {
        self.causes.get(usize::from(number)).map_or(&Cause::Others, |entry| entry)
    }

    /// Returns the id of the thread that a region was on, if that thread is known.
    pub fn tid(&self, sample: &Sample) -> Option<u32> {
        self.thread(sample).map(|(tid, _)| tid)
    }

    /// Returns sums for each group, in the order of the groups. The sums cover the regions whose durations
    /// lie between two quantiles: `0.05..=0.75` leaves out the fastest and the slowest regions. Regions that
    /// are exactly as long as one of both quantiles are included.
    pub fn sums(&self, parts: RangeInclusive<f64>) -> Vec<Sums> {
        let named = breakdown::Named { reasons: &self.reasons, causes: &self.causes };
        sums::sums(&self.groups, &self.store, named, parts)
    }

    /// Returns what the thread of a region did in the region, and whether these intervals cover all of the
    /// region's time.
    pub fn steps(&self, sample: &Sample) -> (Vec<Interval>, bool) {
        let of_session = self.threads.get(usize::from(sample.session));
        let thread = of_session.and_then(|threads| threads.get(usize::from(sample.thread)));
        let within = |thread: &lanes::Logged| thread.within(sample.begin_ns, sample.end_ns());
        thread.map_or_else(Default::default, within)
    }

    /// Returns what the threads of a region's session did around the region.
    pub fn lanes(&self, sample: &Sample, window: &Window) -> Lanes {
        let session = usize::from(sample.session);
        let threads = self.threads.get(session).map_or(&[][..], |threads| threads);
        let has_turns = self.has_all_threads.get(session).is_some_and(|has| *has);
        Lanes::of(threads, sample.thread.into(), window, has_turns)
    }
}

/// Converts host units to nanoseconds of Unix time.
fn unix_ns(session: &Session, host: i64) -> i64 {
    let ns = (session.origin() + i128::from(host)).div_euclid(FRACTION.into());
    ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
