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
//! is a region `poll` inside the span: `poll_begin` and `poll_end`, whose field `span` is the span's id. The
//! first poll begins with the span. `hypertrace regions` shows the span's busy time and the span's idle time.
//! The busy time is the time of the span's polls, and is divided into parts. The two times are the
//! `time.busy` and `time.idle` of `tracing_subscriber::fmt`, without the idle time before the first entry.
//! The last entry, in which the future is dropped, is busy time but no poll.
//! [`HypertraceLayer::without_polls`] leaves the polls out.
//!
//! A worker of an asynchronous runtime has many tasks. The time between two polls of a task is idle time of
//! the task's span, whether the task waited for a socket or the worker was busy with other tasks. All time
//! inside a poll is the span's, including the time of other futures that the poll polls in turn.
//!
//! `NAME_begin` has these fields:
//!
//! - `id`, the span's number. The low 31 bits are a count of spans, and the 22 bits above are a random number
//!   of the process. Spans of two processes can have the same number if both processes draw the same random
//!   number;
//! - `parent`, the id of the surrounding span, or 0 without a surrounding span. `hypertrace regions` shows
//!   the span as a child of the surrounding span;
//! - the fields that the span was made with. `hypertrace regions --by FIELD` groups spans by such a field;
//! - `target`. `regions --by target` groups spans by this field. Spans of one name with several targets are
//!   several rows, `TARGET::NAME`.
//!
//! Values that are recorded later, even before the first entry, make an event `NAME_record`. This event has
//! the span's `id`. A forked child's copy of a span belongs to the parent, so the child's entries into that
//! span make no event.
//!
//! # Events
//!
//! The name of an event is `log_error`, `log_warn`, `log_info`, `log_debug` or `log_trace`, and depends on
//! the event's level. Records of `hypertrace-log` have the same names. The fields are `target`, `span` (the
//! id of the surrounding span, or 0), the event's own fields (`message` is one of them), and `cut`.
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
//! - Schemas: 400. Each kind of event takes one schema, and each kind of span takes three schemas. Every
//!   further set of fields takes one more schema. If all 400 schemas are taken, an event has its fields as a
//!   text in `message`, and a span has no fields. A new kind of span is then a region `span` with the span's
//!   name in a field `name`.
//! - Fields: 13 of a span or an event.
//! - Texts: a text has at most 512 bytes in an event, and at most 64 bytes in a span. All texts and numbers
//!   together have at most 1,024 bytes in an event, and at most 208 bytes in a span. A span's target has at
//!   most 128 bytes. An event's `cut` has the number of bytes that did not fit.
//! - Open spans: some 16,000, of all threads together. A further span is not recorded, but makes an event
//!   `span_lost`, and `hypertrace regions` says how many spans were lost. The layer takes 1 MiB for the first
//!   4,096 open spans when it is made, and 1 MiB more for each further 4,096.
//! - Locks and allocations: a thread takes a lock and allocates if the thread is the first that needs a place
//!   in the code, a further set of fields of a place, or a further MiB. In a VMM, this thread can be a vCPU's
//!   thread. Other threads that need the same thing wait meanwhile.
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
