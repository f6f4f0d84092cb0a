//! What the writers and the readers of a session's files must agree on.
//!
//! ```text
//! folder        a session's directory, and its files: opened, made, replaced
//! packet        the header of a packet of events
//! session_json  the session's description
//! origin        in it, the process and the machine that recorded
//! classes       its event classes, a line each
//! tsdl          parts of the text that describes them to readers of CTF
//! tsc           in it, the TSCs of guests
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
//! `docs/session.md` describes the files. A session's reader checks what it reads: here are the
//! types. Only a page of the kernel's ring buffer is parsed here.
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
