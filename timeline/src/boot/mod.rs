// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Finds boots of virtual machines in the host kernel's events alone. A boot has stages, and each stage has
//! the time of the VMM's threads.
//!
//! ```no_run
//! # fn main() -> Result<(), hypertrace_timeline::Error> {
//! use hypertrace_timeline::boot::{Boots, Options};
//! use hypertrace_timeline::{Given, Recording};
//!
//! let recording = Recording::open(&[Given::new("session")])?;
//! for boot in Boots::of(&recording, &Options::default())?.boots {
//!     for stage in &boot.stages {
//!         println!("{}: {} ns", stage.name, stage.duration_ns());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

// events   the marks of boots, and the exits of vCPUs
// marks    marks that a user names
// threads  what threads did in each stage
// path     the critical path of a stage
mod events;
mod marks;
mod path;
mod threads;

pub use marks::{Mark, MarkError};

use crate::error::Result;
use crate::recording::Recording;
use crate::regions::{Part, Times};
use hypertrace_format::error::Warning;
use serde::Serialize;
use std::fmt;

/// Name of a stage in which the kernel lost events. Other stages may have begun within such a stage.
pub const UNKNOWN: &str = "unknown";

/// Names of the stages that begin with the standard marks.
pub const STAGES: [&str; 7] =
    [VMM, "firmware", "kernel's image", "kernel", "second vCPU", RESTORED, "user space"];

/// Name of the stage from the start of the VMM on.
const VMM: &str = "VMM";

/// Name of the stage from the first entry of a vCPU on, in place of the firmware and the kernel, if the VMM
/// restores a guest.
const RESTORED: &str = "restored";

/// Marks that begin the stages of a boot, and the mark that ends the boot.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Marks in addition to the standard marks. Each mark begins a stage with the mark's name.
    pub marks: Vec<Mark>,
    /// Name of a stage. The boot ends when this stage begins. If the name is `None`, the boot ends when the
    /// VMM ends.
    pub until: Option<String>,
    /// Whether the VMM restores a saved guest, which runs neither firmware nor the begin of a kernel.
    pub is_restore: bool,
}

/// The boots of a recording.
#[derive(Debug)]
#[non_exhaustive]
pub struct Boots {
    /// One boot for each process that ran vCPUs, in the order in which the boots begin.
    pub boots: Vec<Boot>,
    /// Faults of inputs that could be read in spite of these faults, and facts that could not be known.
    pub warnings: Vec<Warning>,
}

/// The boot of a virtual machine from the start of its VMM on, or a whole recording from the first mark on.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Boot {
    /// Id of the VMM's process. `None` for a whole recording.
    pub pid: Option<u32>,
    /// File name of the VMM's program. If the file name is not known, the name of the process's first thread.
    /// The program chooses the name, so escape the name.
    pub name: String,
    /// Whether the recording has the start of the VMM's program. If false, the boot began earlier.
    pub has_start: bool,
    /// Whether the recording has the VMM's end, or the mark that ends the boot.
    pub has_end: bool,
    /// Number of vCPUs that ran.
    pub vcpus: usize,
    /// Stages of the boot in order, without gaps. The durations of the stages add up to the duration of the
    /// boot.
    pub stages: Vec<Stage>,
    /// Moments within stages, in order of time.
    pub points: Vec<Point>,
}

/// A moment of a boot that begins no stage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Point {
    /// Name of what happened.
    pub name: String,
    /// Unix time in nanoseconds.
    pub ts_ns: i64,
}

/// The time of a boot from one mark to the next mark.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Stage {
    /// Name of the mark that begins the stage.
    pub name: String,
    /// Unix time of the beginning in nanoseconds.
    pub begin_ns: i64,
    /// Unix time of the end in nanoseconds.
    pub end_ns: i64,
    /// Exits of vCPUs, grouped by the port, address or MSR that the exits touched. The groups with the most
    /// time come first. If an exit lasts into a later stage, its time is divided between both stages, and
    /// only the first stage counts the exit.
    pub exits: Vec<Exit>,
    /// Threads of the VMM's processes, each with its time in the stage. The thread with the most time on a
    /// CPU comes first.
    pub threads: Vec<Thread>,
    /// Critical path of the thread whose event ended the stage. While a thread on the path was blocked, the
    /// path follows the thread that woke the blocked thread. The longest step comes first. The lengths of the
    /// steps add up to the duration of the stage.
    pub path: Vec<Step>,
}

/// Exits of vCPUs that touched the same port, address or MSR.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Exit {
    /// Port, address or MSR that the exits touched, as in `pio write 0x70`, `mmio read 0xfee00020`, `msr
    /// write 0x10`. If the exits touched no port, address or MSR: KVM's reason for the exits, as in `hlt`.
    pub what: String,
    /// Number of exits.
    pub count: u64,
    /// Total time in nanoseconds from each exit to the vCPU's next entry into guest mode. KVM and the VMM
    /// work in this time, or wait.
    pub ns: u64,
}

/// A thread in a stage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Thread {
    /// Id of the thread.
    pub tid: u32,
    /// Name of the thread. The program chooses the name, so escape the name.
    pub name: String,
    /// Index of the vCPU that the thread ran.
    pub vcpu: Option<u32>,
    /// Time of the thread in each part in nanoseconds.
    #[serde(rename = "parts")]
    pub times: Times,
    /// Waits of the thread by cause, the longest first.
    pub waits: Vec<Wait>,
}

/// The waits of a thread for one cause.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Wait {
    /// Kind of the wait: waiting for a CPU, or blocked.
    pub part: Part,
    /// Cause of the waits. If the thread waited for a CPU, the cause is the thread that had the CPU. If the
    /// thread was blocked, the cause is the thread, interrupt or other source that woke the thread. Programs
    /// choose names, so escape the text.
    pub cause: String,
    /// Length of the waits in nanoseconds.
    pub ns: u64,
}

/// A step of a critical path.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// Name of the thread that did the step. If the step is a wait for something else than a thread, the name
    /// of the cause that ended the wait. Programs choose names, so escape the text.
    pub name: String,
    /// What the thread did.
    pub part: Part,
    /// Length of the step in nanoseconds.
    pub ns: u64,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.name, self.tid)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.part == Part::Blocked { "woken by" } else { "behind" };
        write!(f, "{what} {}", self.cause)
    }
}

impl Boots {
    /// Finds the boots in a recording that has the host kernel's events.
    ///
    /// # Errors
    /// If a stream or a trace is damaged.
    pub fn of(recording: &Recording, options: &Options) -> Result<Boots> {
        let mut found = events::find(recording, options)?;
        let mut warnings = std::mem::take(&mut found.warnings);
        let boots = threads::divide(recording, found, &mut warnings)?;
        Ok(Boots { boots, warnings })
    }

    /// Divides a recording that has the host kernel's events into stages, by [`Options::marks`] alone and
    /// without standard marks. The stages extend from the first mark to the recording's end. The result has
    /// exactly one boot, which has no stages if no event fits a mark.
    ///
    /// # Errors
    /// If a stream or a trace is damaged.
    pub fn of_marks(recording: &Recording, options: &Options) -> Result<Boots> {
        let mut found = events::find_marked(recording, options)?;
        let mut warnings = std::mem::take(&mut found.warnings);
        let boots = threads::divide(recording, found, &mut warnings)?;
        Ok(Boots { boots, warnings })
    }

    /// Returns whether the stage [`Options::until`] has begun in a boot. The recording may be a copy of the
    /// data that have been recorded so far. Once `is_over` returns true, the function stops reading and
    /// returns false.
    ///
    /// # Errors
    /// If a stream or a trace is damaged.
    pub fn has_begun(
        recording: &Recording,
        options: &Options,
        is_over: impl Fn() -> bool,
    ) -> Result<bool> {
        events::has_begun(recording, options, is_over)
    }
}

impl Boot {
    /// Returns the length of the boot in nanoseconds: the sum of its stages.
    pub fn duration_ns(&self) -> u64 {
        self.stages.iter().map(Stage::duration_ns).fold(0, u64::saturating_add)
    }
}

impl Stage {
    /// Returns the length of the stage in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns).max(0).unsigned_abs()
    }

    /// Returns whether the kernel lost events in the stage. The true stages of the boot are unknown for this
    /// time.
    pub fn is_unknown(&self) -> bool {
        self.name == UNKNOWN
    }
}
