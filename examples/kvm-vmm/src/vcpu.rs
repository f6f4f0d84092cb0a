//! The loop of one vCPU: enters the guest, handles its exit, and repeats.
//!
//! The code is unsafe because of one read of a union in KVM's shared page.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use hypertrace_guest::layout;
use kvm_ioctls::{VcpuExit, VcpuFd};

use crate::boot;
use crate::bus::Bus;
use crate::control::Control;
use crate::error::VcpuError;
use crate::observe::{Observer, VmmEvent};

/// Address to which the guest's handler of exceptions stores, on architectures that need a handler.
const EXCEPTION: u64 = layout::CONTROL + layout::CONTROL_EXCEPTION;

/// State that the vCPU threads share.
pub struct Shared {
    pub bus: Bus,
    pub control: Control,
    pub observer: Observer,
    /// Whether vCPUs should stop. A kick makes a vCPU that is in the guest check this flag.
    pub stop: AtomicBool,
}

/// Runs the vCPU until the vCPU's program ends, fails or is stopped. Returns the exit code, or `None` if the
/// vCPU was stopped. A stopped vCPU can run again, here or in another process that has its registers.
pub fn run(index: usize, vcpu: &mut VcpuFd, shared: &Shared) -> Result<Option<u32>, VcpuError> {
    (shared.observer)(VmmEvent::Start { vcpu: index });
    loop {
        // If the VMM has answered an access, KVM completes the access when the vCPU next enters the guest. A
        // vCPU that stops enters the guest, too, so that KVM completes the access, but executes no further
        // instruction.
        let stops = shared.stop.load(Ordering::Relaxed);
        vcpu.set_kvm_immediate_exit(stops.into());
        (shared.observer)(VmmEvent::Run { vcpu: index });
        let exit = vcpu.run();
        let (reason, gpa) = match &exit {
            Ok(VcpuExit::MmioRead(gpa, _)) => ("mmio_read", *gpa),
            Ok(VcpuExit::MmioWrite(gpa, _)) => ("mmio_write", *gpa),
            Ok(VcpuExit::Intr) | Err(_) => ("interrupted", 0),
            Ok(_) => ("other", 0),
        };
        (shared.observer)(VmmEvent::Exit { vcpu: index, reason, gpa });
        match exit {
            Ok(VcpuExit::MmioRead(gpa, data)) => shared.bus.read(gpa, data),
            Ok(VcpuExit::MmioWrite(EXCEPTION, _)) => return Err(exception(vcpu)),
            Ok(VcpuExit::MmioWrite(gpa, data)) => match shared.control.write(gpa, data) {
                Some(Some(code)) => return Ok(Some(code)),
                Some(None) => {}
                None => shared.bus.write(gpa, data),
            },
            // A signal has interrupted KVM_RUN in all of these cases, so the loop checks `stop`.
            Ok(VcpuExit::Intr) if stops => return Ok(None),
            Err(errno) if stops && errno.errno() == libc::EINTR => return Ok(None),
            Ok(VcpuExit::Intr) => {}
            Err(errno) if errno.errno() == libc::EINTR || errno.errno() == libc::EAGAIN => {}
            Ok(VcpuExit::InternalError) => {
                // SAFETY: for this exit reason, KVM has set this member. Any bytes would be a valid integer.
                let suberror = unsafe { vcpu.get_kvm_run().__bindgen_anon_1.internal.suberror };
                return Err(VcpuError::Internal { suberror, rip: boot::fault(vcpu).0 });
            }
            Ok(VcpuExit::Shutdown) => return Err(exception(vcpu)),
            Ok(VcpuExit::FailEntry(reason, _)) => return Err(VcpuError::FailEntry(reason)),
            Ok(exit) => return Err(VcpuError::Unexpected(format!("{exit:?}"))),
            Err(errno) => return Err(VcpuError::Run(errno)),
        }
    }
}

fn exception(vcpu: &VcpuFd) -> VcpuError {
    let (pc, address) = boot::fault(vcpu);
    VcpuError::Exception { pc, address }
}
