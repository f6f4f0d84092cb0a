//! Counts of what was lost or cut on the way into the trace.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of spans, events, fields and texts beyond the limits, in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Spans and events that found no schema of their own.
    pub without_schema: u64,
    /// Spans that were not recorded because too many spans were open. Each such span makes an event
    /// `span_lost`.
    pub lost_spans: u64,
    /// Fields that did not fit.
    pub fields: u64,
    /// Texts that were cut.
    pub cut: u64,
    /// Events, and fields of spans, that were dropped because a value's `Debug` or `Display` made them.
    pub nested: u64,
}

pub(crate) static WITHOUT_SCHEMA: AtomicU64 = AtomicU64::new(0);
pub(crate) static LOST_SPANS: AtomicU64 = AtomicU64::new(0);
pub(crate) static FIELDS: AtomicU64 = AtomicU64::new(0);
pub(crate) static CUT: AtomicU64 = AtomicU64::new(0);

/// Returns the counts of this process.
pub fn counts() -> Counts {
    Counts {
        without_schema: WITHOUT_SCHEMA.load(Relaxed),
        lost_spans: LOST_SPANS.load(Relaxed),
        fields: FIELDS.load(Relaxed),
        cut: CUT.load(Relaxed),
        nested: hypertrace_log::nested(),
    }
}

#[cold]
pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}
