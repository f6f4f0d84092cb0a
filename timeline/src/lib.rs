//! One timeline out of what guests and their hosts recorded.
//!
//! A [`Session`] is a directory that `hypertrace-trace` wrote, perhaps still
//! writes, perhaps was killed writing. [`ClockMaps`] puts its guests' clocks
//! onto the host's, with a bound on the error. [`Timeline`] gives all events
//! of one or several sessions in order.
//!
//! ```no_run
//! # fn main() -> Result<(), hypertrace_timeline::Error> {
//! use hypertrace_timeline::{ClockMaps, Session, Timeline};
//!
//! let session = Session::open("session".as_ref())?;
//! let maps = ClockMaps::of(&session)?;
//! let sessions = [(session, maps)];
//! for event in Timeline::new(&sessions)? {
//!     let event = event?;
//!     println!("{} {} {}", event.ts_ns, event.source, event.name);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Timeline::next_entry`] gives the places where events were lost, too.
//!
//! Everything that is read is checked, and an [`Error`] names file and byte.
//! A file's unfinished end is no damage: sessions survive a kill at any
//! instant. Memory is bounded by the number of streams (64 KiB each) and, while
//! maps are fitted, by that of reference points (150 bytes each), not by the
//! session's size.
//!
//! What it does not do: it writes nothing, repairs nothing on disk, and is not
//! meant to run inside a VMM.
#![warn(missing_debug_implementations)]

pub mod clock;

mod class;
mod error;
mod file;
mod merge;
mod packet;
mod reference;
mod session;
mod session_json;
mod source;
mod stat;
mod stream;

/// How large a session can be, as its writer bounds it.
pub mod limits {
    pub use crate::session_json::{MAX_BYTES, MAX_CLOCKS, MAX_EVENTS, MAX_STREAMS};
}

pub use class::{Class, Classes, Reference, Value};
pub use error::{Error, Result};
pub use merge::{Entry, Event, Kind, Lost, Timeline};
pub use packet::{Domain, Packet};
pub use reference::ClockMaps;
pub use session::Session;
pub use session_json::{Clock, EventJson, SessionJson, StreamJson};
pub use stat::{ClockStat, SessionStat, StreamStat};
pub use stream::{Record, Records, Segment, Stream};
