//! The files of a session: a CTF 1.8 trace and `session.json`.
//!
//! [`stream`] writes files that survive a kill at any instant, in [`packet`]s;
//! [`metadata`] and [`session_json`] describe them, `clock` maps raw counters to Unix
//! time, [`tsc`] has the VMM's word on guests' TSCs. `folder` and `open_files` are the only code that opens,
//! renames or removes files; where the session is written to a descriptor, `journal` sends the same operations to it.

pub(crate) mod clock;
pub(crate) mod error;
pub mod files;
pub mod folder;
pub mod journal;
pub mod metadata;
mod open_files;
pub mod packet;
pub mod session_json;
mod spare;
pub mod stream;
pub mod tsc;
pub(crate) mod uuid;

pub(crate) use clock::{Clocks, HOST_CLOCK, HostClock};
pub use error::WriteFailed;
pub(crate) use files::{Destination, Files};
pub use folder::{Folder, Share};
pub(crate) use packet::{Domain, PacketBuffer, PacketHeader};
pub(crate) use stream::Stream;
pub(crate) use uuid::{Uuid, random_uuid};
