// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Boots of virtual machines, by the host kernel's events alone: the stages of a boot, and what the VMM's threads did in each.
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

/// Name of a stage in which the kernel lost events, so that other stages may have begun meanwhile.
pub const UNKNOWN: &str = "unknown";

/// Marks that begin the stages of a boot, and the mark that ends the boot.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Marks besides the standard ones. Each mark begins a stage with the mark's name.
    pub marks: Vec<Mark>,
    /// Name of the stage at whose begin the boot ends. `None`: the boot ends with the VMM.
    pub until: Option<String>,
}

/// The boots of a recording.
#[derive(Debug)]
#[non_exhaustive]
pub struct Boots {
    /// One for each process that ran vCPUs, in the order of their beginnings.
    pub boots: Vec<Boot>,
    /// Faults of the inputs, although they could be read, and what could not be known.
    pub warnings: Vec<Warning>,
}

/// The boot of a virtual machine: from the start of its VMM on.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Boot {
    /// Number of the VMM's process.
    pub pid: u32,
    /// File name of the VMM's program, or else the name of the process's first thread. Chosen by the program: escape it.
    pub name: String,
    /// Whether the recording has the start of the VMM's program. If not, the boot began earlier.
    pub has_start: bool,
    /// Whether the recording has the VMM's end, or the mark that ends the boot.
    pub has_end: bool,
    /// Number of vCPUs that ran.
    pub vcpus: usize,
    /// The stages, in order, without a gap: their durations add up to the boot's.
    pub stages: Vec<Stage>,
    /// What happened within stages, in order of time.
    pub points: Vec<Point>,
}

/// A moment of a boot that begins no stage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Point {
    /// What happened.
    pub name: String,
    /// Unix time, nanoseconds.
    pub ts_ns: i64,
}

/// The time of a boot from one mark to the next.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Stage {
    /// Name of the mark that begins it.
    pub name: String,
    /// Beginning, Unix time in nanoseconds.
    pub begin_ns: i64,
    /// End, Unix time in nanoseconds.
    pub end_ns: i64,
    /// The exits of vCPUs, by what they touched: those with the most time first. An exit that lasts into a later stage has time in
    /// both, and is counted in the first.
    pub exits: Vec<Exit>,
    /// Time of each thread of the VMM's processes in the stage. The thread with the most time on a CPU comes first.
    pub threads: Vec<Thread>,
    /// The critical path: while the thread whose event ended the stage was blocked, what the thread did that woke it, and so on.
    /// The longest step first. Steps add up to the duration.
    pub path: Vec<Step>,
}

/// Exits of vCPUs that touched the same.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Exit {
    /// Port, address or MSR that the exits touched, as `pio write 0x70`, `mmio read 0xfee00020`, `msr write 0x10`; else KVM's reason, as `hlt`.
    pub what: String,
    /// Number of exits.
    pub count: u64,
    /// Time from the exits to the vCPU's next entries into guest mode, nanoseconds: work of KVM and the VMM, and waits.
    pub ns: u64,
}

/// A thread in a stage.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Thread {
    /// Number of the thread.
    pub tid: u32,
    /// Name of the thread. Chosen by the program: escape it.
    pub name: String,
    /// Number of the vCPU that it ran.
    pub vcpu: Option<u32>,
    /// Time of the thread in each part, nanoseconds.
    #[serde(rename = "parts")]
    pub times: Times,
    /// Waits of the thread by cause, the longest first.
    pub waits: Vec<Wait>,
}

/// The waits of a thread for one cause.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Wait {
    /// Waiting for a CPU, or blocked.
    pub part: Part,
    /// The thread that had the CPU, or what woke the thread. Chosen by programs: escape it.
    pub cause: String,
    /// Time, nanoseconds.
    pub ns: u64,
}

/// A step of a critical path.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Step {
    /// The thread, or what ended a wait. Chosen by programs: escape it.
    pub name: String,
    /// What the thread did.
    pub part: Part,
    /// Time, nanoseconds.
    pub ns: u64,
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
}

impl Boot {
    /// Returns its length, nanoseconds: the sum of its stages.
    pub fn duration_ns(&self) -> u64 {
        self.stages.iter().map(Stage::duration_ns).fold(0, u64::saturating_add)
    }
}

impl Stage {
    /// Returns its length, nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns).max(0).unsigned_abs()
    }

    /// Returns whether events were lost in it, so that it is not known which stage it is.
    pub fn is_unknown(&self) -> bool {
        self.name == UNKNOWN
    }
}
