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

/// Configuration of a session. [`SessionConfig::new`] has defaults for all fields but the destination. A
/// caller changes fields by assignments, or in an expression:
///
/// ```
/// # use hypertrace_trace::SessionConfig;
/// let config = SessionConfig::new("session").with(|config| config.file_bytes = 1 << 24);
/// ```
#[non_exhaustive]
pub struct SessionConfig {
    /// Destination of the session's files.
    pub destination: Destination,
    /// Identity of the host's boot, if the VMM has read `/proc/sys/kernel/random/boot_id`. Otherwise the
    /// session reads this file, unless the session is written to a journal.
    pub boot_id: Option<String>,
    /// The span during which the session is recorded, in the form of W3C's Trace Context. Guests can ask for
    /// this span, and exported spans become children of this span.
    pub trace_parent: Option<TraceParent>,
    /// Size of a stream's sparse file in bytes. The minimum size is the size of a packet and two headers.
    pub file_bytes: u64,
    /// Maximum size of a packet in bytes. The drain has a single buffer for records, which has the size of
    /// the largest packet.
    pub packet_bytes: usize,
    /// Maximum number of stream files that are open at the same time, at least one. Each client and each
    /// thread that traces has a stream file, while a VMM needs its descriptors for other purposes, too. If
    /// there is no room for a further open file, the session closes the file that was written least recently.
    pub open_files: usize,
    /// Users that may read the session's files.
    pub share: Share,
    /// Number of host rings, at most [`MAX_HOST_RINGS`](crate::limits::MAX_HOST_RINGS). At most this number
    /// of the VMM's threads can trace at the same time. The vCPU threads are among these threads.
    /// [`for_vcpus`](SessionConfig::for_vcpus) sets the number.
    pub host_rings: usize,
    /// Size of a host ring in bytes: a power of two, at least 64 KiB.
    pub host_ring_bytes: u64,
    /// Frequency of the host's raw counter in ticks per second, if the VMM knows the frequency. The frequency
    /// is 1,000 times the value of KVM_GET_TSC_KHZ for a vCPU whose TSC is not scaled. If the value is `None`
    /// and the CPU does not tell the frequency, the first session of a process measures the frequency for
    /// half a millisecond, and again while the session runs.
    pub host_frequency: Option<u64>,
    /// Frequency of the guests' TSC in ticks per second, if this frequency differs from the host's frequency.
    pub guest_frequency: Option<u64>,
    /// First clock epoch of the session.
    pub epoch: u32,
    /// Ticks of the host's raw counter at the beginning of the first epoch, if this epoch began before the
    /// session. The times of a lease span at most the time that has passed since the beginning of the epoch.
    pub epoch_began: Option<u64>,
    /// Number of clients that relay the reference points of other clients: clients 0 to `relays - 1`. The
    /// session treats the rings of these clients as host rings. For user mode.
    #[doc(hidden)]
    pub relays: u32,
    /// True if the guests are programs on this host that stamp their events with the host's own counter. For
    /// user mode.
    #[doc(hidden)]
    pub same_counter: bool,
    /// True if the process is not the VMM, and therefore does not know the threads of the vCPUs. For
    /// `hypertrace serve`.
    #[doc(hidden)]
    pub served: bool,
    /// Patterns of the events that the session switches on at its start, in the same way as
    /// [`Session::set_events`](crate::Session::set_events). The patterns apply to events of guests and to
    /// declared events. Without patterns, all events of guests are on, and all declared events are off. A
    /// [recovery](crate::Session::recover) ignores the patterns.
    pub events: Vec<Pattern>,
    /// Callback for failed writes. The drain loop's thread calls the callback at the first failed write. A
    /// later failure causes a call only if all writers have worked again in between.
    pub on_write_failed: Option<OnWriteFailed>,
    /// Contents of the directory, in addition to the control socket.
    pub output: Output,
    /// Limit on the snapshots that guests may take with triggers.
    pub guests_snapshots: SnapshotLimit,
}

/// Where a session is written to. A session that is written to a journal can have neither
/// [`Output::Snapshots`] nor [`Output::Nothing`]. To [recover](crate::Session::recover) a session, a program
/// needs the path of the session's directory.
#[derive(Debug)]
#[non_exhaustive]
pub enum Destination {
    /// Path of an empty directory, or of a new directory in a directory that exists.
    Path(PathBuf),
    /// Descriptor of an empty directory of this user, for a process that can no longer reach the directory
    /// through the directory's path. Such a process opened the directory before it entered its jail, or
    /// received the descriptor from another process. The path appears in messages, and in the path of a
    /// [snapshot](crate::Session::snapshot). If the session has a descriptor, then
    /// [`Session::serve`](crate::Session::serve) needs `/proc`.
    Fd(OwnedFd, PathBuf),
    /// Stream socket to which the journal is written. `hypertrace receive` makes a session of the journal.
    /// The session must be the socket's only writer. The session opens no file, and never waits for the
    /// reader before the session ends. The path appears in messages. A session with a journal has neither
    /// [`Session::serve`](crate::Session::serve) nor a file for simpletrace.
    Journal(OwnedFd, PathBuf),
}

impl Destination {
    /// Returns the path. If the destination has a descriptor, the session does not open the path.
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
    /// The trace of the whole session.
    #[default]
    Trace,
    /// [Snapshots](crate::Session::snapshot): the session is a flight recorder, and each snapshot is a
    /// session in its own directory. Rings overwrite their oldest records, and a device's rings must have the
    /// same [mode](crate::Session::ring_mode).
    Snapshots,
    /// No trace: the events go only to the other backends.
    Nothing,
}

/// Number of host rings that [`SessionConfig::for_vcpus`] adds for a VMM's threads that run no vCPU.
const OTHER_THREADS: usize = 8;

impl SessionConfig {
    /// Returns the defaults: files of 64 MiB, packets of 64 KiB, and host rings of 256 KiB for 8 vCPUs. The
    /// maximum number of open files is 64, or a quarter of RLIMIT_NOFILE if this is less. Only the owner can
    /// read the files, and the guests' TSC has the host's frequency.
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

    /// Returns the configuration with the host rings that a VMM with `vcpus` vCPUs needs: one ring for each
    /// vCPU, and 8 rings for other threads that trace. If more than 8 other threads trace, set
    /// [`host_rings`](SessionConfig::host_rings) afterwards.
    #[must_use]
    pub fn for_vcpus(self, vcpus: u32) -> SessionConfig {
        SessionConfig { host_rings: vcpus as usize + OTHER_THREADS, ..self }
    }

    /// Checks that a session with this configuration can be written to a journal.
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

/// Returns the default of [`SessionConfig::open_files`]: a quarter of RLIMIT_NOFILE, at most 64.
pub(crate) fn default_open_files() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    most.map_or(64, |most| (most / 4).clamp(1, 64) as usize)
}
