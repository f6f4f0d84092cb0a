//! Doorbells: guest stores that KVM turns into a count on an eventfd, without an exit to the VMM.
//!
//! kvm-ioctls derives an ioeventfd's length from the type of its datamatch, so it can register "any
//! length, any value" and "8 bytes of this value", but not "8 bytes of any value". KICK may have either
//! length; tests need the latter. So this module makes the ioctl itself.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kvm_bindings::{KVMIO, kvm_ioeventfd, kvm_ioeventfd_flag_nr_deassign};
use vmm_sys_util::errno;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;

use crate::error::{Error, kvm};
use crate::vm::Vm;

ioctl_iow_nr!(KVM_IOEVENTFD, KVMIO, 0x79, kvm_ioeventfd);

/// Doorbell that is armed until dropped.
#[derive(Debug)]
pub struct IoEvent {
    vm: Arc<Vm>,
    gpa: u64,
    length: u32,
    fd: OwnedFd,
}

impl Vm {
    /// Counts the guest's stores of `length` bytes (1, 2, 4, 8; 0 for any) at `gpa` on `fd`,
    /// whatever their value. Other lengths still exit as MMIO. Works while vCPUs run.
    pub fn doorbell(
        self: &Arc<Self>,
        gpa: u64,
        length: u32,
        fd: BorrowedFd<'_>,
    ) -> Result<IoEvent, Error> {
        let fd = fd.try_clone_to_owned().map_err(Error::EventFd)?;
        let event = IoEvent { vm: Arc::clone(self), gpa, length, fd };
        match event.set(0) {
            Ok(()) => Ok(event),
            Err(source) => {
                // It is not armed. Drop disarms it anyway, and KVM answers ENOENT.
                Err(kvm("KVM_IOEVENTFD")(source))
            }
        }
    }
}

impl IoEvent {
    fn set(&self, flags: u32) -> Result<(), errno::Error> {
        let request = kvm_ioeventfd {
            addr: self.gpa,
            len: self.length,
            fd: self.fd.as_raw_fd(),
            flags,
            ..Default::default()
        };
        // SAFETY: the descriptor is a VM's, and the kernel only reads the request.
        match unsafe { ioctl_with_ref(self.vm.fd(), KVM_IOEVENTFD(), &request) } {
            0 => Ok(()),
            _ => errno::errno_result(),
        }
    }
}

impl Drop for IoEvent {
    fn drop(&mut self) {
        // This fails only if the doorbell is not armed.
        let _ = self.set(1 << kvm_ioeventfd_flag_nr_deassign);
    }
}
