//! Errors of this host's KVM, of setting up a machine, and of running a guest.

use std::io;
use std::time::Duration;

use vmm_sys_util::errno::Error as Errno;

/// Reason why KVM cannot be used on this host. A caller may fall back to threads.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// `/dev/kvm` does not exist: no KVM module, no virtualization, or a container without the
    /// device.
    #[error("there is no /dev/kvm")]
    Missing,
    /// `/dev/kvm` exists, but this user may not open it.
    #[error("no permission to open /dev/kvm (usually: join the group kvm)")]
    Permission,
    /// `/dev/kvm` cannot be opened for some other reason.
    #[error("cannot open /dev/kvm")]
    Open(#[source] io::Error),
    /// KVM's API version is not 12, the only version since Linux 2.6.22.
    #[error("/dev/kvm speaks API version {0}, not 12")]
    Version(i32),
    /// This KVM lacks a capability that the VMM needs.
    #[error("this KVM has no {0}")]
    Capability(&'static str),
    /// KVM cannot make a VM, typically because virtualization is disabled or in use.
    #[error("KVM cannot create a virtual machine")]
    CreateVm(#[source] Errno),
}

/// Error of setting up a machine or of running its guest.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// KVM cannot be used on this host.
    #[error("KVM cannot be used")]
    Unusable(#[from] Unusable),
    /// A count of vCPUs that is 0, or more than the guest's memory map has stacks for.
    #[error("{0} vCPUs: must be 1 to {max}", max = hypertrace_guest::MAX_VCPUS)]
    VcpuCount(usize),
    /// A KVM call failed.
    #[error("{call} failed")]
    Kvm {
        /// Name of the call.
        call: &'static str,
        /// Errno of the call.
        #[source]
        source: Errno,
    },
    /// Guest memory could not be allocated.
    #[error("cannot allocate the guest's RAM")]
    Ram(#[source] vm_memory::mmap::FromRangesError),
    /// A device's memory could not be mapped.
    #[error("cannot map a device's memory")]
    Map(#[from] vm_memory::mmap::MmapRegionError),
    /// A device's window does not fit into the guest's memory map.
    #[error("a window of {size:#x} bytes at {base:#x} leaves the space for devices")]
    Window {
        /// Address of the window.
        base: u64,
        /// Size of the window in bytes.
        size: u64,
    },
    /// An eventfd could not be made.
    #[error("cannot make an eventfd")]
    EventFd(#[source] io::Error),
    /// The device could not be mapped into the guest.
    #[error("cannot map the device")]
    Device(#[source] io::Error),
    /// The VMM accessed an address outside of guest memory: a mistake in the memory map.
    #[error("guest memory")]
    Memory(#[from] vm_memory::GuestMemoryError),
    /// The guest's image could not be loaded.
    #[error("cannot load the guest's image")]
    Image(#[from] object::Error),
    /// A vCPU's thread could not be started.
    #[error("cannot start a vCPU's thread")]
    Thread(#[source] io::Error),
    /// A vCPU cannot continue.
    #[error("vCPU {vcpu} stopped")]
    Vcpu {
        /// Index of the vCPU.
        vcpu: usize,
        /// Reason.
        #[source]
        source: VcpuError,
    },
    /// The guest's program reported failure. Code 101 means that the program panicked, and that its message
    /// is on the guest's console.
    #[error("the guest's program ended with code {code} on vCPU {vcpu}: {console}")]
    Program {
        /// Index of the vCPU.
        vcpu: usize,
        /// Exit code.
        code: u32,
        /// Console output of the guest, with everything but printable ASCII escaped.
        console: String,
    },
    /// The caller stopped the guest: [`Machine::stop_when`](crate::Machine::stop_when).
    #[error("the guest was stopped")]
    Stopped,
    /// The guest was stopped because it was still running at the time limit.
    #[error("the guest was stopped: {running} of its vCPUs still ran after {limit:?}")]
    TimedOut {
        /// Number of vCPUs that were running.
        running: usize,
        /// Time limit.
        limit: Duration,
    },
}

/// Reason why a vCPU cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum VcpuError {
    /// KVM cannot run the guest's code. Code 1 is an instruction that KVM cannot emulate, and code 2 is a
    /// fault during the delivery of another fault.
    #[error("KVM_EXIT_INTERNAL_ERROR, suberror {suberror}, at rip {rip:#x}")]
    Internal {
        /// KVM's code.
        suberror: u32,
        /// The guest's instruction pointer.
        rip: u64,
    },
    /// The guest raised an exception, which ends it: a triple fault on x86-64.
    #[error("the guest raised an exception at {pc:#x} (address of its last fault: {address:#x})")]
    Exception {
        /// The guest's instruction pointer.
        pc: u64,
        /// Address of the last page fault, if the exception was a page fault.
        address: u64,
    },
    /// The processor refused the guest's state.
    #[error("KVM_EXIT_FAIL_ENTRY, hardware reason {0:#x}")]
    FailEntry(u64),
    /// An exit that this VMM does not handle.
    #[error("unexpected exit: {0}")]
    Unexpected(String),
    /// KVM_RUN itself failed.
    #[error("KVM_RUN failed")]
    Run(#[source] Errno),
    /// The vCPU's thread panicked.
    #[error("its thread panicked")]
    Panicked,
}

/// Returns a function that adds the call's name to its error.
pub(crate) fn kvm(call: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Kvm { call, source }
}
