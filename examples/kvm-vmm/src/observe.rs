//! What the VMM tells of itself, for a trace.

use std::sync::Arc;

use hypertrace_device::Region;
use hypertrace_trace::Session;

use crate::trace;

/// Something that the VMM did, told as it happens on the thread that did it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VmmEvent {
    /// A vCPU's thread has begun.
    Start {
        /// Which vCPU.
        vcpu: usize,
    },
    /// A vCPU is about to enter the guest.
    Run {
        /// Which vCPU.
        vcpu: usize,
    },
    /// A vCPU has come back.
    Exit {
        /// Which vCPU.
        vcpu: usize,
        /// Why: `mmio_read`, `mmio_write`, `interrupted`, `other`.
        reason: &'static str,
        /// The guest-physical address of an MMIO exit, else 0.
        gpa: u64,
    },
    /// A region of the device has come to stand in the guest's address space.
    BarMapped {
        /// Which region.
        region: Region,
        /// Its guest-physical address.
        gpa: u64,
        /// Its memory and doorbells work without an exit to the VMM; otherwise every access traps.
        direct: bool,
    },
    /// A region of the device has gone from there.
    BarUnmapped {
        /// Which region.
        region: Region,
        /// Where it was.
        gpa: u64,
    },
}

/// Whom the VMM tells. Called by vCPU threads concurrently, twice per exit: it must not block.
pub type Observer = Arc<dyn Fn(VmmEvent) + Send + Sync>;

/// Has what the VMM does traced, on the calling thread and on those of the vCPUs: `vcpu_run`,
/// `vcpu_exit`, `bar_mapped` and `bar_unmapped`, as far as they are on. Recorded, they stand in the
/// session that the guest's events go to.
pub fn record_in(session: Session) -> Observer {
    session.attach("vmm");
    Arc::new(move |event| match event {
        // Without a ring of its own the thread's events are counted as lost, and the session says
        // so.
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
