// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Exports regions as spans of OpenTelemetry. The output is a sequence of `ExportTraceServiceRequest`s of the
//! protocol OTLP, in JSON.
//!
//! ```text
//! spans     the regions, with their contexts and the events that began them
//! waits     what threads waited for
//! request   a request of bounded size
//! value     values of OTLP in JSON
//! http      requests to a collector
//! ```
//!
//! An export takes two passes over the input. The first pass finds the regions, and the second pass finds the
//! events that begin the regions. Each region becomes a span. The span's id is a hash of the region's
//! session, name, id, time and client's holder, so that a second export of the same input gives the same ids.

pub mod http;
mod request;
mod spans;
mod value;
mod waits;

pub use spans::{Counts, write};
