//! Stand-in for a VMM's calls of KVM. Most VMMs have functions of this kind.

use std::io;

use vmm_sys_util::eventfd::EventFd;

/// A virtual machine.
pub trait Vm: Send + Sync {
    /// Maps memory of this process into the guest: KVM_SET_USER_MEMORY_REGION, with
    /// KVM_MEM_READONLY if `is_read_only`.
    fn map(&self, gpa: u64, size: u64, host_address: u64, is_read_only: bool) -> io::Result<()>;

    /// Removes a mapping, if there is one.
    fn unmap(&self, gpa: u64);

    /// Counts stores of `length` bytes on the eventfd: KVM_IOEVENTFD without a datamatch.
    fn arm(&self, gpa: u64, length: u32, eventfd: &EventFd) -> io::Result<()>;

    /// Removes an ioeventfd, if there is one.
    fn disarm(&self, gpa: u64, length: u32, eventfd: &EventFd);
}
