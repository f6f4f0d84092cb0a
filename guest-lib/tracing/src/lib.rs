//! Records spans and events of the crate [`tracing`](https://docs.rs/tracing) in a trace of hypertrace, in a
//! guest or in a VMM.
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
//! A span is a region of interest from its first entry to its close: the events `NAME_begin` and `NAME_end`.
//! So `hypertrace regions` shows how long the span took, and divides that time into its parts. A span that is
//! never entered is no region.
//!
//! An asynchronous span ([`Instrument`](https://docs.rs/tracing/latest/tracing/trait.Instrument.html)) is
//! entered for each poll, on whichever thread polls. The span's end has the field `any_client`, and each poll
//! is a region `poll` inside the span: `poll_begin` and `poll_end`, whose field `span` is the span's number.
//! The first poll begins with the span. `hypertrace regions` shows the span's busy time, which is the time of
//! its polls, by parts, and its idle time. The two times are the `time.busy` and `time.idle` of
//! `tracing_subscriber::fmt`, without the idle time before the first entry. The last entry, in which the
//! future is dropped, is busy time but no poll. [`HypertraceLayer::without_polls`] leaves the polls out.
//!
//! A worker of an asynchronous runtime has many tasks. The time between two polls of a task is idle time of
//! the task's span, whether the task waited for a socket or the worker was busy with other tasks. All time
//! inside a poll is the span's, including the time of other futures that the poll polls in turn.
//!
//! `NAME_begin` has these fields:
//!
//! - `id`, the span's number: 31 bits that the layer counts, below 22 bits that each process draws at random.
//!   Spans of two processes can have the same number if both processes draw the same bits;
//! - `parent`, the number of the surrounding span, of which `hypertrace regions` shows the span as a child; 0
//!   if there is none;
//! - the fields that the span was made with, by which `hypertrace regions --by FIELD` groups;
//! - `target`, by which `regions --by target` groups. Spans of one name with several targets are several
//!   rows, `TARGET::NAME`.
//!
//! Values that are recorded later, even before the first entry, are an event `NAME_record` with the span's
//! `id`. A forked child's copy of a span belongs to the parent, so the child's entries into that span make no
//! event.
//!
//! # Events
//!
//! An event is `log_error`, `log_warn`, `log_info`, `log_debug` or `log_trace`, by its level, as a record of
//! `hypertrace-log` is. The fields are `target`, `span` (the number of the surrounding span, or 0), the
//! event's own fields (`message` is one of them), and `cut`.
//!
//! # Fields
//!
//! `u64`, `i64`, `f64`, `bool` and `str` keep their types and are not formatted. Other values (`?x`, `%x`,
//! 128-bit integers, errors) are formatted as text, into a buffer on the stack. In names, characters other
//! than letters, digits and `_` become `_`. A span's field `id`, `parent`, `target` or `any_client` gets a
//! `_` at its end, as does an event's field `target`, `span` or `cut`.
//!
//! # Limits
//!
//! [`counts()`] counts what is beyond these limits:
//!
//! - Schemas: 400. Each kind of event takes one schema, and a span takes three; each other set of fields
//!   takes one more. Past 400 schemas, an event has its fields as a text in `message`, and a span has no
//!   fields; a new kind of span is a region `span` with the span's name in a field `name`.
//! - Fields: 13 of a span or an event.
//! - Texts: 512 bytes in an event, with 1,024 for texts and numbers together; 64 bytes in a span, with 208
//!   together; 128 of a span's target. An event's `cut` has the number of bytes that did not fit.
//! - Open spans: some 16,000, of all threads together. A further span is not recorded, but makes an event
//!   `span_lost`, and `hypertrace regions` says how many spans were lost. The layer takes 1 MiB for the first
//!   4,096 open spans when it is made, and 1 MiB more for each further 4,096.
//! - Locks and allocations: a place in the code, a further set of fields of a place, and a further MiB are
//!   prepared once, by the thread that first needs them. In a VMM, that thread can be a vCPU's. Other threads
//!   that need the same thing wait meanwhile.
//! - Events and records that a value's `Debug` or `Display` makes are dropped, so formatting cannot recur
//!   without end.
//!
//! # Switches
//!
//! The layer formats no event or span that is off. If a span's begin is off at the first entry, the layer
//! emits no later event of that span. In a guest, the enable mask switches events by patterns of their names
//! (`trace-event request_* off`, `trace-event poll_* off`). On a host, `log_*` switch the levels, and
//! `span_*` switch all spans. All these events are off at first. Text backends get `log_*` and `span_*` as
//! text, without polls.
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
