//! Recordings of the host kernel's events during a session of hypertrace.
//!
//! ```no_run
//! use hypertrace_kernel::{Config, Recording};
//!
//! # fn main() -> Result<(), hypertrace_kernel::Error> {
//! let mut config = Config::new("session"); // a session that runs
//! config.pids = vec![std::process::id()];
//! let recording = Recording::start(&config)?;
//! // ...
//! let summary = recording.finish()?;
//! println!("{} events in {}, {} lost", summary.asked.events, summary.path.display(), summary.asked.lost());
//! # Ok(())
//! # }
//! ```
//!
//! A [`Recording`] that root starts uses a private instance of the kernel's trace (tracefs). The instance
//! records events of the threads of given processes, and stamps them with the counter that stamps the
//! session's own events. If another user starts a recording, the recording uses perf_event_open(2), and has
//! only the scheduling of that user's own threads. Both kinds of recording make `kernel.dat` in the session's
//! directory, which trace-cmd(1) and KernelShark read.
//!
//! The data survive a kill of the recording process at any instant. [`recover`] completes the recording that
//! a killed process left in a directory. [`sweep`] completes the recordings of all killed processes, and
//! removes their instances.
//!
//! In a guest, a [`Forwarding`] sends the recording to the host in pieces during the recording. On the host,
//! [`GuestRecordings`] assemble the recording from the pieces in the session, and a [`GuestFile`] reads the
//! recording's pages from the session's stream files.
//!
//! This crate does not read `kernel.dat`: `hypertrace-timeline` does. The crate has no features.
#![warn(missing_debug_implementations)]

pub mod ability;
mod assembly;
mod clock;
mod complete;
mod error;
mod forward;
mod guest;
mod instance;
mod owner;
mod pace;
mod pages;
mod perf;
mod processes;
mod recording;
mod recover;
mod registry;
mod relation;
mod source;
mod state;
mod stats;
mod steal;
mod threads;
mod trace_dat;
mod tracefs;
mod tscs;
mod worker;

pub use assembly::{GuestFile, PieceLocation};
pub use complete::{Counts, Summary, copy};
pub use error::Error;
pub use forward::{Forwarded, Forwarding, PIECE, Piece};
pub use guest::{GuestFiles, GuestRecordings};
pub use instance::DEFAULT_EVENTS;
pub use recording::{Config, Recording};
pub use recover::{Recovered, is_incomplete, recover, sweep};
pub use relation::{GuestRecording, HostRecording, relate};
pub use source::Source;
pub use state::FILE;
pub use steal::stolen;

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
