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
//! Each *entry* into a span is a region of interest: the events `NAME_begin` on entry
//! and `NAME_end` on exit, on the thread that enters. So `hypertrace regions` divides
//! the time of each into its parts. A span that is entered once, such as one of
//! `#[instrument]` on a function, is one region. An asynchronous span is entered for
//! each poll, on whichever thread polls, so each poll is a region, and the time between
//! two polls is in none. A span that is never entered makes no event. One that is
//! entered again before it is left has a second region with the same id, which
//! `hypertrace regions` counts as `id_twice`.
//!
//! `id` is the span's number, so the regions of one span have one id. The fields that
//! the span was made with are in each `NAME_begin`: `hypertrace regions --by FIELD`
//! groups by them. Values that are recorded later are an event `NAME_record`.
//!
//! # Events
//!
//! An event is `log_error`, `log_warn`, `log_info`, `log_debug` or `log_trace`, by its
//! level, as a record of `hypertrace-log` is: `target`, the event's fields (`message` is
//! one of them), `cut`.
//!
//! # Fields
//!
//! `u64`, `i64`, `f64`, `bool` and `str` keep their types and are not formatted. Others
//! (`?x`, `%x`, 128-bit integers, errors) are formatted into a buffer on the stack, as a
//! text. In names, other characters than letters, digits and `_` become `_`; a field
//! `id` of a span is `id_`.
//!
//! # Limits
//!
//! [`counts()`] has what is beyond these:
//!
//! - Schemas: each kind of span or event takes one, a span two, and one more for each
//!   other set of fields. Past 256, an event has its fields as a text in `message`, and a
//!   span no fields; a further span is a region `span` with its name in a field `name`.
//! - Fields: 14 of an event, 15 of a span.
//! - Texts: 512 bytes, together with numbers 1,024 bytes in an event; 64 bytes and
//!   240 in a span. An event's `cut` has the number of bytes that did not fit.
//! - 1,024 spans are kept with their fields. A span that finds no place is a region
//!   without fields.
//! - Events and records that a value's `Debug` or `Display` makes are dropped, so nothing
//!   can recur without end.
//!
//! # Switches
//!
//! An event or an entry that is off is not formatted, nor are the fields of a span that is
//! made while it is off: its later entries have none. In a guest, patterns switch names
//! by the enable mask (`trace-event request_* off`); on a host, `log_*` switch the levels,
//! and `span_*` all spans. There all are off until they are switched on, and the backends
//! of text get `log_*` and `span_*` as text.
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
