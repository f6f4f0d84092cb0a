// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Spans of OpenTelemetry, in its protocol OTLP as JSON: one `ExportTraceServiceRequest` after the other.
//!
//! ```text
//! spans     the regions, with their contexts and the events that began them
//! waits     what threads waited for
//! request   a request of bounded size
//! value     values of OTLP in JSON
//! http      requests to a collector
//! ```
//!
//! An export takes two passes over the input: the first finds the regions, the second the events that begin
//! them. A region becomes a span whose id is a hash of the region's session, its client's holder, its name,
//! its id and its time, so that a second export of the same input gives the same ids.

pub mod http;
mod request;
mod spans;
mod value;
mod waits;

pub use spans::{Counts, write};
