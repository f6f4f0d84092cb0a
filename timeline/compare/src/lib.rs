// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A comparison of two builds: whether one build is faster than the other build, and in which part.
//!
//! ```text
//! run       what is kept of a run: sums of its regions
//! compact   collections that take little memory
//! checks    what may not be compared
//! change    the differences between two sides of runs
//! sentence  the answer in words
//! stats     intervals, p values and the smallest difference, of two sets of runs
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod change;
mod checks;
mod compact;
mod run;
mod sentence;
pub mod stats;

pub use change::{
    CONFIDENCE, Change, Comparison, Difference, ExitChange, Judged, LEAST_RUNS, LEVEL, POWER,
    Verdict, runs_needed,
};
pub use checks::Checks;
pub use compact::{Named, Percentiles};
pub use run::{
    Exits, FILE, MAX_NAMES, Mean, OLDEST_VERSION, Region, Run, SLOWEST, TYPICAL, Typical, VERSION,
};
pub use sentence::{Answer, Unit, sentences, signed};

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
