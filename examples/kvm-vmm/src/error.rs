//! What can go wrong: with this host's KVM, with setting up a machine, and with running a guest.

use std::io;
use std::time::Duration;

use vmm_sys_util::errno::Error as Errno;

/// Why KVM cannot be used on this host. A caller that has another way to run takes it.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// `/dev/kvm` does not exist: no KVM module, no virtualization, or a container without the
    /// device.
    #[error("there is no /dev/kvm")]
    Missing,
    /// `/dev/kvm` exists, but not for this user.
    #[error("no permission to open /dev/kvm (usually: join the group kvm)")]
    Permission,
    /// `/dev/kvm` cannot be opened for some other reason.
    #[error("cannot open /dev/kvm")]
    Open(#[source] io::Error),
    /// Not the one API version that there has been since Linux 2.6.22.
    #[error("/dev/kvm speaks API version {0}, not 12")]
    Version(i32),
    /// This KVM lacks a capability that the VMM cannot do without.
    #[error("this KVM has no {0}")]
    Capability(&'static str),
    /// KVM is there, but no VM can be made: typically virtualization is disabled or taken.
    #[error("KVM cannot create a virtual machine")]
    CreateVm(#[source] Errno),
}

/// Why a machine could not be set up, or its guest did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// KVM cannot be used here at all.
    #[error("KVM cannot be used")]
    Unusable(#[from] Unusable),
    /// A count of vCPUs that is 0, or more than the guest's memory map has stacks for.
    #[error("{0} vCPUs: must be 1 to {max}", max = hypertrace_guest::MAX_VCPUS)]
    VcpuCount(usize),
    /// A KVM call failed.
    #[error("{call} failed")]
    Kvm {
        /// The call.
        call: &'static str,
        /// Its errno.
        #[source]
        source: Errno,
    },
    /// Guest memory could not be allocated.
    #[error("cannot allocate the guest's RAM")]
    Ram(#[source] vm_memory::mmap::FromRangesError),
    /// Memory of a device could not be mapped.
    #[error("cannot map a device's memory")]
    Map(#[from] vm_memory::mmap::MmapRegionError),
    /// A device's window that does not fit into the guest's memory map.
    #[error("a window of {size:#x} bytes at {base:#x} leaves the space for devices")]
    Window {
        /// Where it was to be.
        base: u64,
        /// Its size.
        size: u64,
    },
    /// An access to a device's memory left it.
    #[error("device memory")]
    DeviceMemory(#[from] vm_memory::VolatileMemoryError),
    /// The host gave no eventfd.
    #[error("cannot make an eventfd")]
    EventFd(#[source] io::Error),
    /// The drain loop could not be set up.
    #[error("cannot set up the drain loop")]
    Drain(#[source] io::Error),
    /// An access to guest memory by the VMM left it: a mistake in the memory map.
    #[error("guest memory")]
    Memory(#[from] vm_memory::GuestMemoryError),
    /// The guest's image could not be put into its memory.
    #[error("cannot load the guest's image")]
    Image(#[from] linux_loader::loader::Error),
    /// A vCPU's thread could not be started.
    #[error("cannot start a vCPU's thread")]
    Thread(#[source] io::Error),
    /// A vCPU can go no further.
    #[error("vCPU {vcpu} stopped")]
    Vcpu {
        /// Which one.
        vcpu: usize,
        /// Why.
        #[source]
        source: VcpuError,
    },
    /// The guest's program reported failure (101: it panicked; the message is on its console).
    #[error("the guest's program ended with code {code} on vCPU {vcpu}: {console}")]
    Program {
        /// On which vCPU.
        vcpu: usize,
        /// The exit code.
        code: u32,
        /// The console, with everything but printable ASCII escaped: it is the guest's text.
        console: String,
    },
    /// Somebody asked for it: [`Machine::stop_when`](crate::Machine::stop_when).
    #[error("the guest was stopped")]
    Stopped,
    /// The guest was still running when its time was up. It has been stopped.
    #[error("the guest was stopped: {running} of its vCPUs still ran after {limit:?}")]
    TimedOut {
        /// How many vCPUs were running.
        running: usize,
        /// The time that it had.
        limit: Duration,
    },
}

/// Why a vCPU cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum VcpuError {
    /// KVM gave up on the guest's code (1: an instruction it cannot emulate, 2: a fault while
    /// delivering one).
    #[error("KVM_EXIT_INTERNAL_ERROR, suberror {suberror}, at rip {rip:#x}")]
    Internal {
        /// KVM's code.
        suberror: u32,
        /// Where the guest was.
        rip: u64,
    },
    /// The guest raised an exception: it has no handlers, so that is a triple fault.
    #[error("triple fault at rip {rip:#x} (cr2 {cr2:#x})")]
    Shutdown {
        /// Where the guest was.
        rip: u64,
        /// The address of the last page fault, if that is what it was.
        cr2: u64,
    },
    /// The processor refused the guest's state.
    #[error("KVM_EXIT_FAIL_ENTRY, hardware reason {0:#x}")]
    FailEntry(u64),
    /// An exit that this VMM has no use for.
    #[error("unexpected exit: {0}")]
    Unexpected(String),
    /// KVM_RUN itself failed.
    #[error("KVM_RUN failed")]
    Run(#[source] Errno),
    /// The vCPU's thread panicked.
    #[error("its thread panicked")]
    Panicked,
}

/// Names the call in the error of a KVM call.
pub(crate) fn kvm(call: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Kvm { call, source }
}
