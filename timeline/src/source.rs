// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Who recorded an event.

use std::fmt;
use std::sync::Arc;

/// The recorder of an event: a client of a guest, a thread of the VMM or of the host, a thread in a kernel's
/// trace, or a task of a function trace. [`Display`](fmt::Display) writes the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// Serial number of the source. No two sources have the same serial number within one call of
    /// [`Recording::read`](crate::Recording::read) or one [`Follow`](crate::Follow). If a client gets another
    /// holder, the client becomes another source.
    pub number: u64,
    /// Index of the session. A kernel's trace that belongs to no session has an index after the indices of
    /// all sessions.
    pub session: usize,
    /// Id of the guest's client. `None` if the source is not a client.
    pub client: Option<u32>,
    /// Name of the thread: the name that a client gave, or the name of a thread of the host. Escape the name.
    pub name: Option<Box<str>>,
    /// Text that reports show: `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0`, `kernel/vcpu0-1234`. If there
    /// are several sessions, the text begins with the session's name. Escape the text, because it contains a
    /// name that the host does not choose. The text is empty for processes that had no client.
    pub text: Arc<str>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
