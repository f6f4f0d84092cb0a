//! Spans and events of the crate [`tracing`](https://docs.rs/tracing) in the trace of
//! hypertrace, in a guest or in a VMM.
//!
//! ```
//! # #[cfg(feature = "guest")] {
//! use tracing_subscriber::layer::SubscriberExt;
//!
//! let subscriber = tracing_subscriber::registry().with(hypertrace_tracing::HypertraceLayer::guest());
//! tracing::subscriber::with_default(subscriber, || {
//!     let _span = tracing::info_span!("request", bytes = 512u64).entered();
//!     tracing::info!(queue = 3u64, "taken");
//! });
//! # }
//! ```
//!
//! # Spans
//!
//! A span is a region of interest from its first entry to its close: the events
//! `NAME_begin` and `NAME_end`. So `hypertrace regions` shows how long it took and
//! divides that time into its parts. A span that is never entered is no region.
//!
//! An asynchronous span ([`Instrument`](https://docs.rs/tracing/latest/tracing/trait.Instrument.html))
//! is entered for each poll, on whichever thread polls. Its end has the field
//! `any_client`, and each poll is a region `poll` inside it: `poll_begin` and `poll_end`,
//! whose field `span` is the span's number. The first poll begins with the span.
//! `hypertrace regions` shows the span's busy time, which is that of its polls, by its
//! parts, and its idle time. These are the `time.busy` and `time.idle` of
//! `tracing_subscriber::fmt`, without the idle time before the first entry. The last entry,
//! in which the future is dropped, is busy time and no poll.
//! [`HypertraceLayer::without_polls`] leaves the polls out.
//!
//! A worker of an asynchronous runtime has many tasks: the time from one poll of a task to the
//! next is idle time of its span, whether the task waited for a socket or its worker was
//! busy with other tasks. Inside one poll all time is the span's, also that of another
//! future that it polls.
//!
//! `NAME_begin` has these fields:
//!
//! - `id`, the span's number: 31 bits that the layer counts, below 22 bits that each process
//!   draws at random. Spans of two processes can have one number, if both draw the same bits;
//! - `parent`, the number of the span around it; 0 without one;
//! - the fields that the span was made with: `hypertrace regions --by FIELD` groups by them;
//! - `target`. `regions --by target` groups by it, and spans of one name with several
//!   targets are several rows, `TARGET::NAME`.
//!
//! Values that are recorded later, also before the first entry, are an event `NAME_record`
//! with the span's `id`. A span that a forked child has a copy of is its parent's: the child's
//! entries into it make no event.
//!
//! # Events
//!
//! An event is `log_error`, `log_warn`, `log_info`, `log_debug` or `log_trace`, by its
//! level, as a record of `hypertrace-log` is: `target`, `span` (the number of the span
//! around it, or 0), the event's fields (`message` is one of them), `cut`.
//!
//! # Fields
//!
//! `u64`, `i64`, `f64`, `bool` and `str` keep their types and are not formatted. Others
//! (`?x`, `%x`, 128-bit integers, errors) are formatted into a buffer on the stack, as a
//! text. In names, other characters than letters, digits and `_` become `_`; a field
//! `id`, `parent`, `target` or `any_client` of a span gets a `_`, and so does `target`,
//! `span` or `cut` of an event.
//!
//! # Limits
//!
//! [`counts()`] has what is beyond these:
//!
//! - Schemas: each kind of event takes one, a span three, and one more for each
//!   other set of fields. Past 400, an event has its fields as a text in `message`, and a
//!   span no fields; a further span is a region `span` with its name in a field `name`.
//! - Fields: 13.
//! - Texts: 512 bytes, together with numbers 1,024 bytes in an event; 64 bytes and
//!   208 in a span; 128 of a span's target. An event's `cut` has the number of bytes that did
//!   not fit.
//! - Open spans: some 16,000, of all threads together. A further one is not recorded. It is
//!   an event `span_lost`, and `hypertrace regions` says how many there are. The layer takes
//!   1 MiB for the first 4,096 as it is made, and as much again when each 4,096 more are open.
//! - Locks and allocations: a place in the code, a further set of fields of one, and a further
//!   MiB are prepared once, at the first need. Other threads that need the same wait meanwhile.
//! - Events and records that a value's `Debug` or `Display` makes are dropped, so nothing
//!   can recur without end.
//!
//! # Switches
//!
//! The layer formats no event or span that is off. If a span's begin is off at the first
//! entry, the layer emits no later event of that span. In a guest, the enable mask switches
//! events by patterns of their names (`trace-event request_* off`, `trace-event poll_* off`); on a host, `log_*` switch the
//! levels, and `span_*` all spans. There all are off until they are switched on, and the
//! backends of text get `log_*` and `span_*` as text, without polls.
#![warn(missing_debug_implementations)]

mod counts;
mod destination;
#[cfg(feature = "guest")]
mod guest;
#[cfg(feature = "host")]
mod host;
mod layer;
mod names;
mod open;
mod text;
mod values;

pub use counts::{Counts, counts};
pub use layer::HypertraceLayer;

#[cfg(feature = "guest")]
pub use hypertrace_log::Guest;
#[cfg(feature = "host")]
pub use hypertrace_log::Host;

// The example of README.md.
#[cfg(all(doctest, feature = "guest"))]
#[doc = include_str!("../README.md")]
struct Readme;
