//! Layouts and limits on which the writers and the readers of a session's files must agree.
//!
//! ```text
//! folder        a session's directory and its files: opening, making and replacing
//! packet        the header of a packet of events
//! session_json  the session's description
//! origin        the process and the machine that recorded a session, in session.json
//! classes       the event classes of a session, one per line
//! tsdl          parts of the metadata, which describes a trace to readers of CTF
//! tsc           the TSCs of guests, in session.json
//! limits        bounds of a session
//! trace_dat     ids in a trace.dat, the file of a kernel's recording
//! ring_page     pages of a kernel's ring buffer
//! clock         one instant on all of the host's clocks
//! uuid          UUIDs as text
//! pattern       patterns of event names
//! error         errors of a directory and of a write
//! number        numbers in messages
//! ```
//!
//! `docs/session.md` describes the files. This crate has the types of these files, and leaves the checks of
//! the values to a session's reader. But [`ring_page`] parses and checks pages of a kernel's ring buffer.
#![warn(missing_debug_implementations)]

pub mod classes;
pub mod clock;
pub mod error;
pub mod folder;
pub mod limits;
pub mod number;
pub mod origin;
pub mod packet;
pub mod pattern;
pub mod ring_page;
pub mod session_json;
pub mod trace_dat;
pub mod tsc;
pub mod tsdl;
pub mod uuid;

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
