//! The channel of hypertrace without a VM: programs on this host trace through a segment, which is a file
//! with the regions of a device in it. Two threads of the host serve the segment.
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
//! The program uses the guest library as it would in a VM, unchanged: the library finds the segment by an
//! environment variable.
//!
//! - [`Segment`] is the file: a memfd, or a file on tmpfs that outlives a crash;
//! - [`Host`] has the threads, which answer reference points, drain rings, and beat;
//! - [`Session`] is a trace session with a segment and a host;
//! - [`run`] starts a program in a session, as `hypertrace record` does;
//! - [`recover`](fn@recover) saves the records that a crash left in a segment.
//!
//! The crate does not watch programs: a program that never calls the library leaves nothing, and costs
//! nothing. The crate has no features.
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
