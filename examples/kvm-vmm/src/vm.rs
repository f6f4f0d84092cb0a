//! The virtual machine and its RAM.
//!
//! The code is unsafe because KVM takes raw host addresses: a slot must not outlive its mapping.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use hypertrace_guest::layout;
use hypertrace_vmm::kvm::KvmVm;
use kvm_bindings::{KVM_API_VERSION, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::error::{Error, Unusable, kvm};

/// Virtual machine with [`layout::RAM_SIZE`] bytes of RAM at 0.
#[derive(Debug)]
pub struct Vm {
    fd: VmFd,
    kvm: Kvm,
    ram: GuestMemoryMmap,
}

impl Vm {
    /// Opens `/dev/kvm` and makes a VM with zeroed RAM and nothing else.
    ///
    /// # Errors
    /// [`Error::Unusable`] if this host has no usable KVM.
    pub fn new() -> Result<Arc<Vm>, Error> {
        let kvm_fd = open()?;
        let fd = kvm_fd.create_vm().map_err(Unusable::CreateVm)?;
        let ram = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), layout::RAM_SIZE as usize)])
            .map_err(Error::Ram)?;
        let vm = Vm { fd, kvm: kvm_fd, ram };
        let host = vm.ram.get_host_address(GuestAddress(0))?;
        let region = kvm_userspace_memory_region {
            memory_size: layout::RAM_SIZE,
            userspace_addr: host as u64,
            ..Default::default()
        };
        // SAFETY: the struct owns both `ram` and `fd`, and each vCPU's thread holds the struct. So the RAM
        // stays mapped while a vCPU runs.
        unsafe { vm.fd.set_user_memory_region(region) }
            .map_err(kvm("KVM_SET_USER_MEMORY_REGION"))?;
        Ok(Arc::new(vm))
    }

    /// Returns the RAM, addressed by guest-physical addresses.
    pub fn ram(&self) -> &GuestMemoryMmap {
        &self.ram
    }

    /// Returns the calls for the device's memory slots and doorbells, which work while vCPUs run.
    ///
    /// # Safety
    /// The device's memory lives until it is unmapped, or until no vCPU runs any more.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub unsafe fn calls(&self) -> io::Result<KvmVm> {
        // SAFETY: the descriptor is this VM's; the caller promises the rest. RAM has slot 0.
        unsafe { KvmVm::new(&self.fd, 1) }
    }

    pub(crate) fn fd(&self) -> &VmFd {
        &self.fd
    }

    #[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "for CPUID"))]
    pub(crate) fn kvm(&self) -> &Kvm {
        &self.kvm
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
