//! Events of the VMM itself, for a trace.

use std::sync::Arc;

use hypertrace_device::Region;
use hypertrace_trace::Session;

use crate::trace;

/// Event of the VMM, reported on the thread where it happens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VmmEvent {
    /// A vCPU's thread has started.
    Start {
        /// Index of the vCPU.
        vcpu: usize,
    },
    /// A vCPU is about to enter the guest.
    Run {
        /// Index of the vCPU.
        vcpu: usize,
    },
    /// A vCPU has left the guest.
    Exit {
        /// Index of the vCPU.
        vcpu: usize,
        /// Reason: `mmio_read`, `mmio_write`, `interrupted`, `other`.
        reason: &'static str,
        /// Guest-physical address of an MMIO exit, or 0 for other exits.
        gpa: u64,
    },
    /// A region of the device was mapped into the guest's address space.
    BarMapped {
        /// The region.
        region: Region,
        /// Guest-physical address of the region.
        gpa: u64,
        /// Whether the region's memory and doorbells work without an exit to the VMM. If false, every access
        /// traps.
        direct: bool,
    },
    /// A region of the device was unmapped.
    BarUnmapped {
        /// The region.
        region: Region,
        /// Previous guest-physical address of the region.
        gpa: u64,
    },
}

/// Receiver of the VMM's events. vCPU threads call the receiver concurrently, twice per exit, so it must not
/// block.
pub type Observer = Arc<dyn Fn(VmmEvent) + Send + Sync>;

/// Returns an observer that traces the VMM into the session of the guest's events. The observer records the
/// declared events `vcpu_run`, `vcpu_exit`, `bar_mapped` and `bar_unmapped`, on the calling thread and on the
/// vCPUs' threads.
pub fn record_in(session: Session) -> Observer {
    session.attach("vmm");
    Arc::new(move |event| match event {
        // If a thread finds no free ring, the session counts the thread's events as lost.
        VmmEvent::Start { vcpu } => {
            session.attach(&format!("vcpu{vcpu}"));
        }
        VmmEvent::Run { vcpu } => trace::vcpu_run(vcpu as u32),
        VmmEvent::Exit { vcpu, reason, gpa } => trace::vcpu_exit(vcpu as u32, reason, gpa),
        VmmEvent::BarMapped { region, gpa, direct } => {
            trace::bar_mapped(region.bar() as u32, gpa, direct);
        }
        VmmEvent::BarUnmapped { region, gpa } => trace::bar_unmapped(region.bar() as u32, gpa),
    })
}
