//! The registry: every declared event of the program, and the backends that get the event.
//!
//! For each declaration in a `trace-events` file, `hypertrace-trace-build` makes a function, a [`TraceEvent`]
//! and a text. The linker gathers the events of all crates in [`EVENTS`]. Without the feature `events`, this
//! list is empty. An event's state is one word, which tells the backends that get the event now. So an event
//! that is off costs one relaxed load and a branch.

use bitflags::bitflags;
use hypertrace_abi::event::{Event, Fields, SchemaText, Site, Text};
use hypertrace_abi::schema::FieldType;
use hypertrace_format::pattern::Pattern;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// All declared events of the program, in no particular order.
#[cfg(feature = "events")]
#[linkme::distributed_slice]
pub static EVENTS: [TraceEvent];

/// The declared events of a program that declares none.
#[cfg(not(feature = "events"))]
pub static EVENTS: &[TraceEvent] = &[];

bitflags! {
    /// A set of backends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Backends: u32 {
        /// The threads' rings. The files of `session` and `simple` are written from these rings. Active as
        /// long as a [`Session`](crate::Session) has not ended.
        const RING = 1;
        /// Lines on stderr.
        const LOG = 2;
        /// Messages to syslog.
        const SYSLOG = 4;
        /// Lines that are written to the kernel's trace through trace_marker.
        const FTRACE = 8;
        /// Records that are written to the kernel's trace through trace_marker_raw.
        const FTRACE_RAW = 16;
        /// SDT probes, for bpftrace, perf and SystemTap.
        const SDT = 32;
        /// The backends that write an event as text.
        const TEXT = Self::LOG.bits() | Self::SYSLOG.bits() | Self::FTRACE.bits();
    }
}

/// The active backends.
static BACKENDS: AtomicU32 = AtomicU32::new(0);

/// Returns the active backends.
pub fn active() -> Backends {
    Backends::from_bits_retain(BACKENDS.load(SeqCst))
}

/// Activates backends that need no preparation.
pub(crate) fn activate(backends: Backends) {
    BACKENDS.fetch_or(backends.bits(), SeqCst);
    settle();
}

/// Removes backends.
pub fn remove(backends: Backends) {
    BACKENDS.fetch_and(!backends.bits(), SeqCst);
    settle();
}

fn settle() {
    for event in EVENTS {
        event.settle();
    }
}

/// Number of sessions that have not ended. These sessions need the rings.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

/// Counts a session that begins.
pub(crate) fn session_began() {
    if SESSIONS.fetch_add(1, SeqCst) == 0 {
        activate(Backends::RING);
    }
}

/// Counts a session that ends.
pub(crate) fn session_ended() {
    if SESSIONS.fetch_sub(1, SeqCst) == 1 {
        remove(Backends::RING);
        // Another session may have begun after the subtraction and before the removal.
        if SESSIONS.load(SeqCst) > 0 {
            activate(Backends::RING);
        }
    }
}

/// Forgets the sessions of the parent process after a fork.
pub(crate) fn forget_sessions() {
    SESSIONS.store(0, SeqCst);
    remove(Backends::RING);
}

/// Bit in an event's state: the event is switched on, even if no backend is active.
const WANTED: u32 = 1 << 31;

/// A declared event and its state.
pub struct TraceEvent {
    /// The bits of the backends that get the event, and the bit [`WANTED`].
    state: AtomicU32,
    name: &'static str,
    text: SchemaText,
    types: &'static [FieldType],
    declaration: &'static str,
    module: &'static str,
    file: &'static str,
    line: u32,
}

impl TraceEvent {
    /// Returns an event that is off. The source of `declaration` is in `file` at `line`, and the event was
    /// compiled into `module`.
    pub const fn new<S: Site, F: Fields>(
        declaration: &'static str,
        module: &'static str,
        file: &'static str,
        line: u32,
    ) -> TraceEvent {
        TraceEvent {
            state: AtomicU32::new(0),
            name: S::NAME,
            text: Event::<S, F>::TEXT,
            types: F::TYPES,
            declaration,
            module,
            file,
            line,
        }
    }

    /// Returns the backends that get the event now, as bits. 0 means off.
    #[inline(always)]
    pub fn on(&self) -> u32 {
        self.state.load(Relaxed) & !WANTED
    }

    /// Returns the event's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the event's id: the hash of its schema.
    pub fn id(&self) -> u32 {
        self.text.id
    }

    /// Returns the canonical text of the event's schema.
    pub fn schema(&self) -> String {
        let mut text = Vec::new();
        self.text.pieces(&mut |piece| text.extend_from_slice(piece));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the types of the event's recorded arguments.
    pub fn types(&self) -> &'static [FieldType] {
        self.types
    }

    /// Returns the event's declaration on one line, with the types that QEMU's readers know.
    pub fn declaration(&self) -> &'static str {
        self.declaration
    }

    /// Returns the name and the arguments in the declaration.
    fn signature(&self) -> &'static str {
        self.declaration.split('"').next().unwrap_or_default().trim_end()
    }

    /// Returns true if the event is switched on, even if it reaches no backend.
    pub fn is_wanted(&self) -> bool {
        self.state.load(Relaxed) & WANTED != 0
    }

    /// Switches the event. Any thread may call this method, even the thread of a vCPU. A call costs a few
    /// loads and one swap, or only the loads if the state does not change.
    pub fn set(&self, wanted: bool) {
        self.settle_as(|_| wanted);
    }

    /// Updates the event's state to the active backends.
    pub(crate) fn settle(&self) {
        self.settle_as(|state| state & WANTED != 0);
    }

    /// If `wanted` returns true for the previous state, sets the bit [`WANTED`] and the bits of the active
    /// backends. Otherwise sets the state to 0. Another thread may change the backends meanwhile. After this
    /// change, the other thread settles all events. Either the other thread sees the state that this thread
    /// has stored, or this thread sees the change and tries again.
    #[inline]
    fn settle_as(&self, wanted: impl Fn(u32) -> bool) {
        loop {
            let (before, backends) = (self.state.load(SeqCst), BACKENDS.load(SeqCst));
            let state = if wanted(before) { WANTED | backends } else { 0 };
            let stored = before == state
                || self.state.compare_exchange(before, state, SeqCst, SeqCst).is_ok();
            if stored && backends == BACKENDS.load(SeqCst) {
                return;
            }
        }
    }
}

impl fmt::Debug for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceEvent")
            .field("name", &self.name)
            .field("on", &Backends::from_bits_retain(self.on()))
            .finish_non_exhaustive()
    }
}

/// Returns all events, sorted by name.
fn sorted() -> Vec<&'static TraceEvent> {
    let mut events: Vec<_> = EVENTS.iter().collect();
    events.sort_by_key(|event| (event.name, event.declaration, event.module));
    events
}

/// Returns all declarations in the form of QEMU's `trace-events-all`, sorted by name. Readers of the simple
/// backend's file need this text. If two crates have the same declaration, the text has the declaration once.
/// A [`Clash`] appears as a comment.
pub fn trace_events_all() -> String {
    let mut all: String = clashes().iter().map(|clash| format!("# {clash}\n")).collect();
    let mut events = sorted();
    events.dedup_by_key(|event| event.signature());
    for event in events {
        all.push_str(event.declaration);
        all.push('\n');
    }
    all
}

/// A name that two crates declare with different arguments. Each of the two events is recorded correctly. But
/// readers that identify events only by their names confuse the two events. The readers of the simple
/// backend's file are such readers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Clash {
    /// One of the two events.
    pub first: &'static TraceEvent,
    /// The other event.
    pub second: &'static TraceEvent,
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is declared with different arguments:", self.first.name)?;
        for (event, end) in [(self.first, " and"), (self.second, "")] {
            let TraceEvent { file, line, module, .. } = event;
            let whose = module.split("::").next().unwrap_or_default();
            write!(f, " {} in {whose} ({file}:{line}){end}", event.signature())?;
        }
        write!(f, "; readers of the simple backend's file take one for the other")
    }
}

/// Returns every [`Clash`] of the program.
pub fn clashes() -> Vec<Clash> {
    let events = sorted();
    let pairs = events.iter().zip(events.iter().skip(1));
    pairs
        .filter(|(a, b)| a.name == b.name && a.signature() != b.signature())
        .map(|(first, second)| Clash { first, second })
        .collect()
}

/// Switches declared events of this program. Returns the number of events that match the pattern. Any thread
/// may call this function, but the thread of a vCPU should rather switch a single event with
/// [`TraceEvent::set`].
pub fn set_declared(pattern: &Pattern, on: bool) -> usize {
    let events = EVENTS.iter().filter(|event| pattern.matches(event.name()));
    events.map(|event| event.set(on)).count()
}
