//! Bounds on the growth of a session, whatever its guests do.

pub use hypertrace_abi::ring::MAX_NAME_BYTES;

/// Maximum size of the descriptions that all guests share, in bytes.
pub const GUESTS_BYTES: usize = 2 << 20;
/// Maximum size of the descriptions that each client may add to the guests' common size, in bytes. No other
/// client can use up this size, which suffices for about 50 classes.
pub const CLIENT_BYTES: usize = 16 << 10;
/// Maximum size of the descriptions of the host's own events, in bytes.
pub const HOST_BYTES: usize = 8 << 20;

/// Maximum number of bytes per second that the session writes to replace files: `session.json`, and also the
/// metadata if the maps of the clocks change. The session replaces these files once a second, or less often
/// if the files have more bytes than this number.
pub const ACCOUNT_BYTES_PER_SECOND: u64 = 1 << 20;

/// Maximum number of clocks in an epoch, the host's clock included. Without this limit, a hostile guest could
/// make the host begin a clock for each lease.
pub const MAX_CLOCKS: usize = 64;
/// Maximum number of clocks in a session. If a session has this many clocks, later epochs use the last
/// clocks.
pub const MAX_SESSION_CLOCKS: usize = 1024;

/// Maximum number of guest TSCs in a session, in all its epochs.
pub const MAX_GUEST_TSCS: usize = 2048;

/// Maximum number of schemas that one client can have.
pub const MAX_CLIENT_SCHEMAS: usize = hypertrace_abi::schema::MAX_SCHEMAS;
/// Size of a class in `classes.jsonl` without its text, in bytes.
pub const CLASS_BYTES: usize = 128;

/// Maximum number of files that one source may begin in a clock epoch. A source begins a file if the source's
/// holder or clock changes. Because of this limit, a hostile guest cannot fill the folder with files. After
/// this number of files, later events of the source go to the file that is open, with timestamps clamped to
/// the range of this file. In each epoch that the VMM begins, the source may begin the same number of files
/// again.
pub const MAX_RESTARTS: u32 = 64;

/// Maximum number of guest generations in a session that may each begin [`MAX_RESTARTS`] files. Because of
/// this limit, a guest that resets itself in a loop cannot fill the folder with files. Each later generation
/// may begin one file, as long as the session may begin [clocks](MAX_SESSION_CLOCKS).
pub const MAX_GENERATIONS: u32 = 64;

/// Maximum number of clients of a device (`hypertrace_abi::layout::Geometry::check`).
pub const MAX_CLIENTS: u32 = 1024;

/// Maximum of a count of lost events. The maximum excludes a count whose bits are all 1: readers of CTF take
/// this count as "not known", while a Python program takes this count as a large number.
pub const MAX_LOST: u64 = i64::MAX as u64;

/// Maximum number of event classes in a session: as many as the budget can pay for.
pub const MAX_CLASSES: usize =
    (GUESTS_BYTES + MAX_CLIENTS as usize * CLIENT_BYTES + HOST_BYTES) / CLASS_BYTES;
/// Maximum number of host rings in a session.
pub const MAX_HOST_RINGS: usize = 1024;
/// Maximum number of the host's streams: of its rings, of the threads without a ring, and of relays.
pub const MAX_HOST_STREAMS: u32 = MAX_HOST_RINGS as u32 + 1 + MAX_CLIENTS;
/// Maximum number of streams in a session.
pub const MAX_STREAMS: usize = (MAX_CLIENTS + MAX_HOST_STREAMS) as usize;
/// Maximum size of `session.json` in bytes: 384 for each clock ([`MAX_SESSION_CLOCKS`]), 192 for each [TSC of
/// a guest](MAX_GUEST_TSCS), 1.5 KiB for each stream (a name whose every byte is escaped, and all counts),
/// and 256 KiB for the rest, such as a device's counters.
pub const MAX_SESSION_JSON: u64 =
    (MAX_SESSION_CLOCKS * 384 + MAX_GUEST_TSCS * 192 + MAX_STREAMS * 1536 + (256 << 10)) as u64;
/// Maximum size of `classes.jsonl` in bytes: the budgets of the [guests](GUESTS_BYTES), of all
/// [clients](CLIENT_BYTES) and of the [host](HOST_BYTES), and 384 bytes for each clock.
pub const MAX_CLASSES_BYTES: u64 =
    (GUESTS_BYTES + MAX_CLIENTS as usize * CLIENT_BYTES + HOST_BYTES + MAX_SESSION_CLOCKS * 384)
        as u64;
/// Maximum size of the metadata in bytes. The metadata needs the size of
/// [`classes.jsonl`](MAX_CLASSES_BYTES), and 8 KiB for each clock, because the stream class of the clock
/// repeats the reserved event classes. The limit is twice this sum, because the metadata has gaps, so that no
/// block crosses a page.
pub const MAX_METADATA: u64 = 2 * (MAX_CLASSES_BYTES + MAX_SESSION_CLOCKS as u64 * 8192);
