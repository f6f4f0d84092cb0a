// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The KVM calls that the device needs.
//!
//! The calls use only the VM's descriptor, so a VMM can use any version of the KVM crates.
#![allow(unsafe_code)] // ioctl(2)

use crate::vm::Vm;
use hypertrace_device::Mapping;
use kvm_bindings::{
    KVM_CAP_IOEVENTFD_ANY_LENGTH, KVM_CAP_READONLY_MEM, KVM_MEM_READONLY, KVMIO, kvm_ioeventfd,
    kvm_ioeventfd_flag_nr_deassign, kvm_userspace_memory_region,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Returns the number of a KVM ioctl whose argument the kernel reads.
const fn iow<T>(number: u64) -> libc::c_ulong {
    1 << 30 | (size_of::<T>() as libc::c_ulong) << 16 | (KVMIO as libc::c_ulong) << 8 | number
}

const CHECK_EXTENSION: libc::c_ulong = (KVMIO as libc::c_ulong) << 8 | 0x03;
const SET_USER_MEMORY_REGION: libc::c_ulong = iow::<kvm_userspace_memory_region>(0x46);
const IOEVENTFD: libc::c_ulong = iow::<kvm_ioeventfd>(0x79);

/// The [`Vm`] for KVM, which uses memory slots and ioeventfds.
///
/// A `KvmVm` holds a descriptor of the VM. The VM ends when its last descriptor is closed.
///
/// ```no_run
/// use hypertrace_vmm::{DeviceConfig, Hypertrace, SessionConfig, kvm::KvmVm};
///
/// # fn start(vm: &impl std::os::fd::AsRawFd) -> Result<(), Box<dyn std::error::Error>> {
/// let hypertrace = Hypertrace::start(SessionConfig::new("out"), DeviceConfig::new(2))?;
/// // RAM has the slots 0 to 7.
/// // SAFETY: it is a VM's descriptor, and `hypertrace` lives longer than the VM.
/// let calls = unsafe { KvmVm::new(vm, 8)? };
/// let window = hypertrace.device().place_window(&calls, 0xd000_0000)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct KvmVm {
    vm: OwnedFd,
    first_slot: u32,
    has_readonly_memory: bool,
    has_any_length: bool,
}

impl KvmVm {
    /// Makes a `KvmVm` from the VM's descriptor, for example `kvm_ioctls::VmFd`. The device uses at most four
    /// memory slots, from `first_slot` on.
    ///
    /// # Safety
    /// `vm` is an open descriptor of a VM. The guest accesses the memory that this value maps into the guest.
    /// This memory must therefore stay memory of this process until this value unmaps the memory, or until no
    /// vCPU of the VM runs any more.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub unsafe fn new(vm: &impl AsRawFd, first_slot: u32) -> io::Result<KvmVm> {
        // SAFETY: the caller promises that the descriptor is open.
        let vm = unsafe { BorrowedFd::borrow_raw(vm.as_raw_fd()) }.try_clone_to_owned()?;
        let has = |extension: u32| {
            // SAFETY: the argument is a number.
            unsafe {
                libc::ioctl(vm.as_raw_fd(), CHECK_EXTENSION as _, libc::c_ulong::from(extension))
                    > 0
            }
        };
        let has_readonly_memory = has(KVM_CAP_READONLY_MEM);
        let has_any_length = has(KVM_CAP_IOEVENTFD_ANY_LENGTH);
        Ok(KvmVm { vm, first_slot, has_readonly_memory, has_any_length })
    }

    /// Sets the size of a region's slot in bytes; 0 removes the slot.
    fn set_slot(&self, memory: &Mapping<'_>, size: u64) -> io::Result<()> {
        let region = kvm_userspace_memory_region {
            slot: self.first_slot + memory.region as u32,
            flags: if memory.is_read_only { KVM_MEM_READONLY } else { 0 },
            guest_phys_addr: memory.gpa,
            memory_size: size,
            userspace_addr: memory.host_address,
        };
        self.call(SET_USER_MEMORY_REGION, &region)
    }

    fn set_ioeventfd(&self, gpa: u64, eventfd: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
        let len = if self.has_any_length { 0 } else { 8 };
        let fd = eventfd.as_raw_fd();
        self.call(IOEVENTFD, &kvm_ioeventfd { addr: gpa, len, fd, flags, ..Default::default() })
    }

    fn call<T>(&self, request: libc::c_ulong, argument: &T) -> io::Result<()> {
        // SAFETY: the kernel reads the argument, whose size is part of the request number. The caller of
        // `new` promises that the guest may use the memory.
        match unsafe { libc::ioctl(self.vm.as_raw_fd(), request as _, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Vm for KvmVm {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        if memory.is_read_only && !self.has_readonly_memory {
            let why = "this KVM has no memory that a guest may only read";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        self.set_slot(memory, memory.size)
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        // This call fails only if the slot does not exist.
        let _ = self.set_slot(memory, 0);
    }

    fn arm(&self, gpa: u64, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.set_ioeventfd(gpa, eventfd, 0)
    }

    fn disarm(&self, gpa: u64, eventfd: BorrowedFd<'_>) {
        // This call fails only if the eventfd is not armed.
        let _ = self.set_ioeventfd(gpa, eventfd, 1 << kvm_ioeventfd_flag_nr_deassign);
    }
}
