//! Channels for threads of this process, which trace over a segment as a guest does.
//!
//! The code is unsafe because a channel is made from an address.
#![allow(unsafe_code)]

use std::sync::Arc;

use hypertrace::{Channel, OpenError};
use hypertrace_segment::Segment;

/// Makes a channel of a segment, which stays mapped until the process ends.
pub fn segment_channel(segment: &Arc<Segment>) -> Result<Channel<'static>, OpenError> {
    // A program may use the channel until the process ends, so this reference is never dropped.
    std::mem::forget(Arc::clone(segment));
    // SAFETY: the whole segment is mapped at this address and writable. The reference above keeps the mapping
    // until the process ends.
    unsafe { Channel::at_window(segment.address()) }
}
