//! Bounds of a session's growth, whatever its guests do.

pub use hypertrace_abi::ring::MAX_NAME_BYTES;

/// Bytes of description that all guests share.
pub const GUESTS_BYTES: usize = 2 << 20;
/// Bytes of description that each client has besides, whatever others do: about
/// 50 classes.
pub const CLIENT_BYTES: usize = 16 << 10;
/// Bytes of description that the host has for its own events.
pub const HOST_BYTES: usize = 8 << 20;

/// Bytes that are written in a second to replace `session.json`, and the metadata for its clocks: once a second, and
/// less often where they are larger.
pub const ACCOUNT_BYTES_PER_SECOND: u64 = 1 << 20;

/// Most clocks of an epoch, the host's among them; a hostile guest could ask
/// for one per lease.
pub const MAX_CLOCKS: usize = 64;
/// Most clocks of a session: epochs beyond use the last ones.
pub const MAX_SESSION_CLOCKS: usize = 1024;

/// Most TSCs of guests of a session, in all its epochs.
pub const MAX_GUEST_TSCS: usize = 2048;

/// Most schemas that one client can have.
pub const MAX_CLIENT_SCHEMAS: usize = hypertrace_abi::schema::MAX_SCHEMAS;
/// Bytes of a class in `classes.jsonl`, besides its text.
pub const CLASS_BYTES: usize = 128;

/// Files that one source may begin in a clock epoch because its holder or its
/// clock changed, so that a hostile guest cannot fill the folder with files.
/// After that its timestamps are clamped into the file that is open. A VMM that
/// begins an epoch allows as many again.
pub const MAX_RESTARTS: u32 = 64;

/// Generations of a session's guests that may each begin [as many files](MAX_RESTARTS) anew, so that
/// a guest that resets itself in a loop cannot fill the folder with files. Later ones may begin one each,
/// as long as there are [clocks](MAX_SESSION_CLOCKS).
pub const MAX_GENERATIONS: u32 = 64;

/// Clients that a device can have (`hypertrace_abi::layout::Geometry::check`).
pub const MAX_CLIENTS: u32 = 1024;

/// Most that a count of lost events may say: readers take all ones for "not
/// known", and Python for a large number.
pub const MAX_LOST: u64 = i64::MAX as u64;

/// Event classes that a session has at most: all that the budget can pay for.
pub const MAX_CLASSES: usize =
    (GUESTS_BYTES + MAX_CLIENTS as usize * CLIENT_BYTES + HOST_BYTES) / CLASS_BYTES;
/// Host rings that a session has at most.
pub const MAX_HOST_RINGS: usize = 1024;
/// Streams of the host: its rings, the one of threads without a ring, and
/// relays.
pub const MAX_HOST_STREAMS: u32 = MAX_HOST_RINGS as u32 + 1 + MAX_CLIENTS;
/// Streams of a session at most.
pub const MAX_STREAMS: usize = (MAX_CLIENTS + MAX_HOST_STREAMS) as usize;
/// Bytes of `session.json` at most: for each clock ([`MAX_SESSION_CLOCKS`])
/// 384 bytes, for each [TSC of a guest](MAX_GUEST_TSCS) 192; 1.5 KiB for each stream (a name whose every byte is escaped,
/// counts of everything); and 256 KiB for the rest, a device's counters among
/// it.
pub const MAX_SESSION_JSON: u64 =
    (MAX_SESSION_CLOCKS * 384 + MAX_GUEST_TSCS * 192 + MAX_STREAMS * 1536 + (256 << 10)) as u64;
/// Bytes of `classes.jsonl` at most: what [guests](GUESTS_BYTES), [clients](CLIENT_BYTES) and the
/// [host](HOST_BYTES) can pay for, and 384 for each clock.
pub const MAX_CLASSES_BYTES: u64 =
    (GUESTS_BYTES + MAX_CLIENTS as usize * CLIENT_BYTES + HOST_BYTES + MAX_SESSION_CLOCKS * 384)
        as u64;
/// Bytes of the metadata at most: as many as in [`classes.jsonl`](MAX_CLASSES_BYTES), and 8 KiB for each clock, whose stream
/// class has the reserved event classes again; and as many again, which are left out so that no block crosses a page.
pub const MAX_METADATA: u64 = 2 * (MAX_CLASSES_BYTES + MAX_SESSION_CLOCKS as u64 * 8192);
