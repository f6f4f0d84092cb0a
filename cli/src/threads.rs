//! Threads of this process that trace as a guest does, over a segment.
//!
//! Unsafe, because a channel is made from an address.
#![allow(unsafe_code)]

use anyhow::Result;
use hypertrace::Channel;
use hypertrace_user::Session;
use std::sync::Arc;

/// The session's segment as a channel of this process.
pub fn channel(session: &Session) -> Result<Channel<'static>> {
    let segment = session.segment();
    // As long as a channel may be used, which is for ever.
    std::mem::forget(Arc::clone(segment));
    // SAFETY: the whole segment is mapped there, writable, and not unmapped:
    // one more owner than there are was counted.
    Ok(unsafe { Channel::at_window(segment.address())? })
}
