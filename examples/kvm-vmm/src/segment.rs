//! Channels for threads of this process, which trace over a segment as a guest does.
//!
//! The code is unsafe because a channel is made from an address.
#![allow(unsafe_code)]

use std::sync::Arc;

use hypertrace::{Channel, OpenError};
use hypertrace_segment::Segment;

/// Makes a channel of a segment, which stays mapped until the process ends.
pub fn segment_channel(segment: &Arc<Segment>) -> Result<Channel<'static>, OpenError> {
    // A channel may be used until the process ends, so the segment stays mapped.
    std::mem::forget(Arc::clone(segment));
    // SAFETY: the whole segment is mapped at this address, writable, and never unmapped: the forgotten
    // reference keeps the mapping.
    unsafe { Channel::at_window(segment.address()) }
}
