//! The virtual machine: its RAM, and memory slots that can be added and removed while it runs.
//!
//! Unsafe, because KVM takes raw host addresses: a slot must not outlive its mapping.
#![allow(unsafe_code)]

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use hypertrace_guest::layout;
use kvm_bindings::{KVM_API_VERSION, KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, MmapRegion};

use crate::error::{Error, Unusable, kvm};

/// Accesses of the guest to a [`Memslot`] without an exit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// Loads and stores.
    ReadWrite,
    /// Loads; a store exits as MMIO and goes to the [`Bus`](crate::Bus). Needs
    /// [`Vm::has_readonly_memory`].
    ReadOnly,
}

/// Virtual machine with [`layout::RAM_SIZE`] bytes of RAM at 0.
#[derive(Debug)]
pub struct Vm {
    fd: VmFd,
    kvm: Kvm,
    ram: GuestMemoryMmap,
    readonly_memory: bool,
    /// Slot numbers in use, by number.
    slots: Mutex<Vec<bool>>,
}

impl Vm {
    /// Opens `/dev/kvm` and makes a VM with zeroed RAM and nothing else.
    ///
    /// # Errors
    /// [`Error::Unusable`] if this host has no usable KVM.
    pub fn new() -> Result<Arc<Vm>, Error> {
        let kvm_fd = open()?;
        let fd = kvm_fd.create_vm().map_err(Unusable::CreateVm)?;
        let readonly_memory = fd.check_extension(Cap::ReadonlyMem);
        let ram = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), layout::RAM_SIZE as usize)])
            .map_err(Error::Ram)?;
        let vm = Vm { fd, kvm: kvm_fd, ram, readonly_memory, slots: Mutex::new(vec![true]) };
        let host = vm.ram.get_host_address(GuestAddress(0))?;
        // SAFETY: `ram` is in the same struct as `fd` and declared after it, so the VM is closed first.
        unsafe { vm.set_slot(0, 0, host as u64, layout::RAM_SIZE, 0) }?;
        Ok(Arc::new(vm))
    }

    /// Returns the RAM, addressed by guest-physical addresses.
    pub fn ram(&self) -> &GuestMemoryMmap {
        &self.ram
    }

    /// Returns whether KVM has read-only slots. Without them, such memory must trap altogether.
    pub fn has_readonly_memory(&self) -> bool {
        self.readonly_memory
    }

    /// Maps memory at `gpa` until the slot is dropped. Works while vCPUs run.
    ///
    /// # Errors
    /// If `gpa` and the size are not whole pages, or there is memory already.
    pub fn map(
        self: &Arc<Self>,
        gpa: u64,
        memory: MmapRegion,
        access: Access,
    ) -> Result<Memslot, Error> {
        let flags = if access == Access::ReadOnly { KVM_MEM_READONLY } else { 0 };
        let slot = self.take_slot();
        // SAFETY: the Memslot holds the mapping, and removes the slot before it drops it.
        let set = unsafe {
            self.set_slot(slot, gpa, memory.as_ptr() as u64, memory.size() as u64, flags)
        };
        match set {
            Ok(()) => Ok(Memslot { vm: Arc::clone(self), slot, gpa, _memory: memory }),
            Err(error) => {
                self.release_slot(slot);
                Err(error)
            }
        }
    }

    /// # Safety
    /// `host` must stay a mapping of `size` bytes until the slot is removed or the VM closed.
    unsafe fn set_slot(
        &self,
        slot: u32,
        gpa: u64,
        host: u64,
        size: u64,
        flags: u32,
    ) -> Result<(), Error> {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: gpa,
            memory_size: size,
            userspace_addr: host,
        };
        // SAFETY: the caller's promise.
        unsafe { self.fd.set_user_memory_region(region) }.map_err(kvm("KVM_SET_USER_MEMORY_REGION"))
    }

    fn take_slot(&self) -> u32 {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let free = slots.iter().position(|taken| !taken).unwrap_or(slots.len());
        if free == slots.len() {
            slots.push(true);
        } else {
            slots[free] = true;
        }
        free as u32
    }

    fn release_slot(&self, slot: u32) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)[slot as usize] = false;
    }

    pub(crate) fn fd(&self) -> &VmFd {
        &self.fd
    }

    #[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "for CPUID"))]
    pub(crate) fn kvm(&self) -> &Kvm {
        &self.kvm
    }
}

/// Memory that is mapped in the guest's address space until dropped.
#[derive(Debug)]
pub struct Memslot {
    vm: Arc<Vm>,
    slot: u32,
    gpa: u64,
    _memory: MmapRegion,
}

impl Drop for Memslot {
    fn drop(&mut self) {
        // SAFETY: size 0 removes the slot; KVM ignores the host address. When this returns, no vCPU
        // uses it any more.
        let removed = unsafe { self.vm.set_slot(self.slot, self.gpa, 0, 0, 0) };
        // A number that KVM still uses is not reused.
        if removed.is_ok() {
            self.vm.release_slot(self.slot);
        }
    }
}

/// Opens `/dev/kvm` and checks for the capabilities that this VMM needs.
fn open() -> Result<Kvm, Unusable> {
    let kvm = Kvm::new().map_err(|errno| {
        let error = io::Error::from(errno);
        match error.kind() {
            io::ErrorKind::NotFound => Unusable::Missing,
            io::ErrorKind::PermissionDenied => Unusable::Permission,
            _ => Unusable::Open(error),
        }
    })?;
    match kvm.get_api_version() {
        version if version == KVM_API_VERSION as i32 => {}
        version => return Err(Unusable::Version(version)),
    }
    let needed = [
        (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
        (Cap::Ioeventfd, "KVM_CAP_IOEVENTFD"),
        #[cfg(target_arch = "x86_64")]
        (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
        (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    ];
    match needed.into_iter().find(|(cap, _)| !kvm.check_extension(*cap)) {
        Some((_, name)) => Err(Unusable::Capability(name)),
        None => Ok(kvm),
    }
}
