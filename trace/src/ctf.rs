//! The files of a session: a CTF 1.8 trace, `session.json` and `classes.jsonl`. `hypertrace-format` has the
//! layouts of these files.
//!
//! [`stream`] writes files that survive a kill at any instant, in packets that a [`packet_buffer`] holds.
//! [`metadata`] describes these files to CTF's readers, `clock` maps raw counters to Unix time, and [`tsc`]
//! holds the VMM's facts about guests' TSCs. Only `files`, `open_files` and `appended` open, rename or remove
//! files. If the session is a journal, `journal` sends the same operations to the journal's descriptor.

mod appended;
pub(crate) mod clock;
pub mod files;
pub mod journal;
pub mod metadata;
mod open_files;
pub mod packet_buffer;
pub mod stream;
pub mod tsc;
pub(crate) mod uuid;

pub(crate) use clock::{Clocks, HOST_CLOCK, HostClock};
pub(crate) use files::{Files, Root};
pub(crate) use hypertrace_format::error::WriteFailed;
pub(crate) use hypertrace_format::folder::{Folder, Share};
pub(crate) use hypertrace_format::packet::{Domain, PacketHeader};
pub(crate) use packet_buffer::PacketBuffer;
pub(crate) use stream::Stream;
pub(crate) use uuid::random_uuid;
