//! Channels for threads of this process, which trace over a segment as a guest does.
//!
//! Unsafe, because a channel is made from an address.
#![allow(unsafe_code)]

use anyhow::Result;
use hypertrace::Channel;
use hypertrace_user::Session;
use std::sync::Arc;

/// Makes a channel of the session's segment.
pub fn channel(session: &Session) -> Result<Channel<'static>> {
    let segment = session.segment();
    // A channel may be used until the process ends, so the segment stays mapped.
    std::mem::forget(Arc::clone(segment));
    // SAFETY: the whole segment is mapped there, writable, and never unmapped: the
    // forgotten reference keeps it.
    Ok(unsafe { Channel::at_window(segment.address())? })
}
