// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sessions and function traces in the formats of other readers.
//!
//! ```text
//! events    what is exported, one event after the other
//! row       an event or a loss, with its time since the start
//! choice    which events are wanted
//! json      an object a line
//! csv       a row an event
//! ctf       a trace in Common Trace Format
//! otlp      regions as spans of OpenTelemetry
//! perfetto  a trace of Perfetto
//! uftrace   a directory of uftrace, with a session's events among the calls
//! begins    the events that begin regions
//! names     functions that are compiled in
//! number    numbers as text
//! sources   what lines say of sources
//! by_name   values of names
//! escape    foreign texts for terminals, JSON, HTML and CSV
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod begins;
mod by_name;
pub mod choice;
pub mod csv;
pub mod ctf;
mod error;
pub mod escape;
pub mod events;
pub mod json;
pub mod names;
pub mod number;
pub mod otlp;
pub mod perfetto;
mod row;
mod sources;
pub mod uftrace;

pub use choice::Choice;
pub use error::{Error, Result};
pub use events::Events;
pub use row::Row;
