// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Who recorded an event.

use std::fmt;
use std::sync::Arc;

/// Who recorded an event: a client of a guest, a thread of the VMM or of the host, a thread in a kernel's trace, or a task of a
/// function trace. [`Display`](fmt::Display) writes the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Source {
    /// Number of the source: within one call of [`Recording::read`](crate::Recording::read), or one
    /// [`Follow`](crate::Follow), no two sources have the same. A client whose holder changes is another source.
    pub number: u64,
    /// Index of the session. Traces of a kernel that belong to no session are counted after the sessions.
    pub session: usize,
    /// Guest client; `None` for others.
    pub client: Option<u32>,
    /// Name of the thread: the one that a client gave itself, or a thread of the host has. Escape it.
    pub name: Option<Box<str>>,
    /// What reports show: `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0`, `kernel/vcpu0-1234`, with the name of the session
    /// before it if there are several. The name in it is not chosen by the host: escape it. Empty for processes that had no
    /// client.
    pub text: Arc<str>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
