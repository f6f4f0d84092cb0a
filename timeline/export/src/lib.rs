// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Converts sessions and function traces to the formats of other programs.
//!
//! ```text
//! choice    which events are wanted
//! json      an object a line
//! csv       a row an event
//! ctf       a trace in Common Trace Format
//! otlp      regions as spans of OpenTelemetry
//! perfetto  a trace of Perfetto
//! uftrace   a directory of uftrace, with a session's events among the calls
//! number    numbers as text
//! sources   what lines say of sources
//! by_name   values of names
//! escape    foreign texts for terminals, JSON, HTML and CSV
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod by_name;
pub mod choice;
pub mod csv;
pub mod ctf;
mod error;
pub mod escape;
pub mod json;
pub mod number;
pub mod otlp;
pub mod perfetto;
mod sources;
pub mod uftrace;

pub use choice::Choice;
pub use error::{Error, Result};

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
