// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sessions: directories with a CTF trace and its description.
//!
//! ```text
//! stream_input the session's inputs: one per stream
//! clock_maps   maps of the guests' clocks
//! guest_tscs   KVM's and the VMM's word on the guests' TSCs
//! lease        lease records
//! samples      the reference points' times, and the constraints that follow
//! session      the whole directory
//! stream       the records of one producer, in all of its files
//! packet       packet headers
//! class        event classes
//! session_json the description
//! ```

mod class;
mod clock_maps;
mod guest_tscs;
mod lease;
mod packet;
mod samples;
mod session;
mod session_json;
mod stream;
mod stream_input;

pub use class::{Class, Classes};
pub use clock_maps::ClockMaps;
pub(crate) use clock_maps::GuestClock;
pub(crate) use guest_tscs::kvm_line;
pub use guest_tscs::{ComparedTsc, GuestCpu, KvmWord};
pub(crate) use packet::MAX_CLIENTS;
pub use packet::{Domain, Packet, PacketHeader};
pub(crate) use samples::proven_threads;
pub use samples::vcpu_threads;
pub(crate) use samples::{Found, KvmTsc, MAX_POINTS, Sample, find};
pub(crate) use session::stream_files;
pub use session::{Offset, Session};
pub use session_json::{Clock, EventJson, GuestTsc, SessionJson, StreamJson};
pub(crate) use stream::Cursor;
pub use stream::{Record, Records, Segment, Stream};
pub(crate) use stream_input::{elsewhere, inputs, stream_inputs};
