//! The channel of hypertrace with no VM: programs on this host trace through a
//! segment, a file with the regions of a device in it, which two threads of the
//! host serve.
//!
//! ```no_run
//! use std::process::Command;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let session = hypertrace_user::Session::create(hypertrace_user::Config::new("S"))?;
//! let mut command = Command::new("./program");
//! session.pass_to(&mut command);
//! command.status()?;
//! println!("{} records", session.finish()?.records);
//! # Ok(())
//! # }
//! ```
//!
//! The program uses the guest library as it would in a VM, unchanged: it finds
//! the segment by its environment.
//!
//! - [`Segment`] is the file: a memfd, or one on tmpfs that outlives a crash;
//! - [`Host`] is the threads: they answer reference points, drain rings, and beat;
//! - [`Session`] is a trace session with both;
//! - [`run`] starts a program in it, as `hypertrace record` does;
//! - [`recover`](fn@recover) saves the records that a crash left in a segment.
//!
//! It does not watch programs: one that never calls the library leaves nothing,
//! and costs nothing. It has no features.
#![warn(missing_debug_implementations)]

mod cut;
mod drain;
mod host;
mod inherit;
mod points;
mod policy;
mod privilege;
mod program;
mod recover;
mod session;
mod state;

pub use cut::end_if_cut;
pub use host::Host;
pub use policy::Policy;
pub use privilege::Privilege;
pub use program::{Program, ProgramError, allow_open_files, run, run_command};
pub use recover::recover;
pub use session::{Config, Error, Session};

pub use hypertrace_abi::drain::DrainPolicy;
pub use hypertrace_segment::child::{Signals, exit_code, pass_signals_on, was_told_to_end};
pub use hypertrace_segment::{Holder, Segment, SegmentError};

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
