// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The eventfd of the register KICK.

use crate::chip::DrainWaker;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The eventfd that the drain loop waits for. If the VMM has [armed](crate::Chip::doorbell) this eventfd as
/// an ioeventfd, a guest's store to KICK signals this eventfd. A chip that has this eventfd as its waker also
/// signals this eventfd. Clones are the same descriptor.
///
/// ```
/// use hypertrace_device::{DrainWaker, Kick};
///
/// # fn main() -> std::io::Result<()> {
/// let kick = Kick::new()?;
/// let waker = kick.clone(); // for `Chip::new`
/// waker.wake();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Kick(Arc<OwnedFd>);

impl Kick {
    /// Makes an eventfd with EFD_NONBLOCK and EFD_CLOEXEC.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> io::Result<Kick> {
        Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?.into())
    }

    /// Makes the eventfd not readable. A VMM's own loop calls this before each
    /// [`Chip::drain`](crate::Chip::drain).
    pub fn clear(&self) {
        // The read fails only if the eventfd is not readable, and then nothing has to be done.
        let _ = rustix::io::read(self, &mut [0; 8]);
    }
}

impl DrainWaker for Kick {
    fn wake(&self) {
        // The write fails only if the counter is full. In this case, the eventfd is readable anyway.
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }
}

/// An eventfd of the VMM, which must have EFD_NONBLOCK.
impl From<OwnedFd> for Kick {
    fn from(eventfd: OwnedFd) -> Kick {
        Kick(Arc::new(eventfd))
    }
}

impl AsFd for Kick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
