//! Configuration of a session.

use super::error::SessionError;
use crate::ctf::journal::frame::{MAX_FILE_BYTES, MAX_PACKET_BYTES};
use crate::ctf::packet_buffer::DEFAULT_PACKET_BYTES;
use crate::ctf::stream::DEFAULT_FILE_BYTES;
use crate::ctf::{PacketBuffer, Share};
use crate::drain::{OnWriteFailed, SnapshotLimit, TraceState};
use crate::events::Pattern;
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_format::packet::HEADER_BYTES;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Configuration of a session. [`SessionConfig::new`] has defaults for all but the
/// destination. A caller changes fields in place, or in an expression:
///
/// ```
/// # use hypertrace_trace::SessionConfig;
/// let config = SessionConfig::new("session").with(|config| config.file_bytes = 1 << 24);
/// ```
#[non_exhaustive]
pub struct SessionConfig {
    /// Where the session is written to.
    pub destination: Destination,
    /// The host's boot, from `/proc/sys/kernel/random/boot_id`, if the VMM knows it. Otherwise that file is
    /// read, unless the session is written to a journal.
    pub boot_id: Option<String>,
    /// The span in whose course the session is recorded, by W3C's Trace Context. Guests can ask for it,
    /// and exported spans are its children.
    pub trace_parent: Option<TraceParent>,
    /// Bytes of a stream's file, sparse; at least a packet and two headers.
    pub file_bytes: u64,
    /// Bytes of the largest packet: the drain's only buffer for records.
    pub packet_bytes: usize,
    /// Stream files that are open at the same time, at least one: there is one
    /// for each client and each thread that traces, and a VMM has other uses for
    /// its descriptors. The one that was written least recently is closed when
    /// another is needed.
    pub open_files: usize,
    /// The users that may read what is written.
    pub share: Share,
    /// Host rings: threads of the VMM that can trace at the same time, vCPUs' among them, at most
    /// [`MAX_HOST_RINGS`](crate::limits::MAX_HOST_RINGS). [`for_vcpus`](SessionConfig::for_vcpus) sets it.
    pub host_rings: usize,
    /// Bytes of a host ring, a power of two from 64 KiB.
    pub host_ring_bytes: u64,
    /// Ticks per second of the host's raw counter, if the VMM knows them: what KVM_GET_TSC_KHZ
    /// gives for a vCPU whose TSC is not scaled, times 1,000. Without them, the first session of a
    /// process measures for half a millisecond, and again while it runs.
    pub host_frequency: Option<u64>,
    /// Ticks per second of the guests' TSC, where it is not the host's.
    pub guest_frequency: Option<u64>,
    /// The clock epoch that begins.
    pub epoch: u32,
    /// Host's raw counter when it began, if that was before the session: a
    /// lease cannot span more time than has passed since.
    pub epoch_began: Option<u64>,
    /// Clients below this number relay reference points of others: their rings
    /// are as host rings. For user mode.
    #[doc(hidden)]
    pub relays: u32,
    /// Guests stamp with the host's own counter: programs on this host. For user mode.
    #[doc(hidden)]
    pub same_counter: bool,
    /// The process is not the VMM, and knows no vCPU's thread. For `hypertrace serve`.
    #[doc(hidden)]
    pub served: bool,
    /// Events to switch on at the start, of guests and declared ones, as by [`Session::set_events`](crate::Session::set_events).
    /// Guests' events are all on at first, declared ones off. Not for a session that is
    /// [recovered](crate::Session::recover).
    pub events: Vec<Pattern>,
    /// Called on the drain loop's thread when writing begins to fail, once
    /// until it works again.
    pub on_write_failed: Option<OnWriteFailed>,
    /// Contents of the directory, beside the control socket.
    pub output: Output,
    /// How many snapshots guests may take, by triggers.
    pub guests_snapshots: SnapshotLimit,
}

/// Where a session is written to. Not a journal for [`Output::Snapshots`] and [`Output::Nothing`]; a session is
/// [recovered](crate::Session::recover) by its path.
#[derive(Debug)]
#[non_exhaustive]
pub enum Destination {
    /// A directory, which is empty or does not exist, in one that exists.
    Path(PathBuf),
    /// An open directory, which is empty and this user's, for a process that can no longer find it by its path: opened before it
    /// entered its jail, or handed to it. The path is for messages, and for
    /// that of a [snapshot](crate::Session::snapshot). [`Session::serve`](crate::Session::serve) needs
    /// `/proc` then.
    Fd(OwnedFd, PathBuf),
    /// A stream socket that gets a journal, which `hypertrace receive` makes a session of. The
    /// session opens no file then, and never waits for the reader while it runs; it must be the socket's
    /// only writer. The path is for messages. Without [`Session::serve`](crate::Session::serve) and without
    /// a file for simpletrace.
    Journal(OwnedFd, PathBuf),
}

impl Destination {
    /// Returns the path, which is only for messages where there is a descriptor.
    pub fn path(&self) -> &Path {
        match self {
            Destination::Path(path) | Destination::Fd(_, path) | Destination::Journal(_, path) => {
                path
            }
        }
    }
}

/// Contents of a session's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// The trace, all the time.
    #[default]
    Trace,
    /// [Snapshots](crate::Session::snapshot), each a session in a directory of its
    /// own: a flight recorder. Rings overwrite their oldest records; a
    /// device's are to be of the same [mode](crate::Session::ring_mode).
    Snapshots,
    /// Nothing: what the rings hold goes to the other backends only.
    Nothing,
}

/// Host rings for threads of a VMM that run no vCPU, in a configuration [for vCPUs](SessionConfig::for_vcpus).
const OTHER_THREADS: usize = 8;

impl SessionConfig {
    /// Defaults: files of 64 MiB, packets of 64 KiB, host rings of 256 KiB for 8
    /// vCPUs, at most 64 open files and no more than a quarter of RLIMIT_NOFILE,
    /// readable for the owner alone, guests whose TSC counts as the host's.
    pub fn new(dir: impl Into<PathBuf>) -> SessionConfig {
        SessionConfig {
            destination: Destination::Path(dir.into()),
            boot_id: None,
            trace_parent: None,
            file_bytes: DEFAULT_FILE_BYTES,
            packet_bytes: DEFAULT_PACKET_BYTES,
            open_files: default_open_files(),
            share: Share::default(),
            host_rings: 8 + OTHER_THREADS,
            host_ring_bytes: 256 * 1024,
            host_frequency: None,
            guest_frequency: None,
            epoch: 0,
            epoch_began: None,
            relays: 0,
            same_counter: false,
            served: false,
            events: Vec::new(),
            on_write_failed: None,
            output: Output::Trace,
            guests_snapshots: SnapshotLimit::default(),
        }
    }

    /// Returns the same with as many host rings as a VMM of `vcpus` vCPUs needs: one for each, and 8 for its
    /// other threads that trace. Set [`host_rings`](SessionConfig::host_rings) afterwards if there are more of them.
    #[must_use]
    pub fn for_vcpus(self, vcpus: u32) -> SessionConfig {
        SessionConfig { host_rings: vcpus as usize + OTHER_THREADS, ..self }
    }

    /// Checks that a session of this configuration can be written to a journal.
    pub(super) fn check_journal(&self) -> Result<(), SessionError> {
        let refused = |why| Err(SessionError::not_in_a_journal(why));
        match self.output {
            Output::Trace => {}
            Output::Snapshots => return refused("snapshots of a flight recorder need a directory"),
            Output::Nothing => return refused("it has no output"),
        }
        if self.packet_bytes > MAX_PACKET_BYTES {
            return refused("its packets are larger than 16 MiB");
        }
        if self.file_bytes > MAX_FILE_BYTES {
            return refused("its files are larger than 1 TiB");
        }
        Ok(())
    }

    /// Sets up a session's buffers and files.
    pub(super) fn apply(&mut self, state: &mut TraceState) {
        state.buffer = PacketBuffer::new(self.packet_bytes);
        let least = (state.buffer.packet_bytes() + 2 * HEADER_BYTES) as u64;
        state.trace.file_bytes = self.file_bytes.max(least).next_multiple_of(HEADER_BYTES as u64);
        state.trace.open_files = self.open_files;
        state.failures.on_failed = self.on_write_failed.take();
    }

    /// Returns the configuration as `change` leaves it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut SessionConfig)) -> SessionConfig {
        change(&mut self);
        self
    }
}

/// Returns how many stream files are open at a time by default: a
/// quarter of what the process may have, at most 64.
pub(crate) fn default_open_files() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    most.map_or(64, |most| (most / 4).clamp(1, 64) as usize)
}
