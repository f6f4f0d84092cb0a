//! The TSCs of the vCPUs as KVM computes them, for the session.
//!
//! kvm-ioctls cannot read an attribute of a vCPU, so this module makes the ioctl itself.
#![allow(unsafe_code)]

use hypertrace_trace::{GuestTsc, Session};
use kvm_bindings::{KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO, kvm_device_attr};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;

use crate::machine::Machine;

ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

impl Machine {
    /// Gives a session the number of ticks that KVM adds to the host's TSC to compute the vCPUs' TSC. Call
    /// this function when the vCPUs have their TSCs and the session's epoch has begun: after the device was
    /// made or restored, and before the machine runs.
    ///
    /// Before Linux 5.16, and where KVM scales the TSC, the session gets nothing.
    pub fn give_tscs(&self, session: &Session) {
        let host = session.host_frequency();
        let tscs = Vec::from_iter(self.vcpus.iter().map(|vcpu| guest_tsc(&vcpu.fd, host)));
        match tscs.first() {
            // All vCPUs have the same TSC, so a program reads the same TSC on any vCPU.
            Some(first) if tscs.iter().all(|tsc| tsc == first) => {
                session.set_guest_tsc(None, *first);
            }
            _ => {
                for (client, tsc) in (0..).zip(tscs) {
                    session.set_guest_tsc(Some(client), tsc);
                }
            }
        }
    }
}

/// Returns the TSC of a vCPU on a host of this frequency.
fn guest_tsc(vcpu: &VcpuFd, host: u64) -> Option<GuestTsc> {
    let own = u64::from(vcpu.get_tsc_khz().ok()?) * 1_000;
    // KVM does not tell the number of the ratio's fraction bits, which depends on the CPU's vendor.
    let is_scaled = own.abs_diff(host) > host / 1_000;
    offset(vcpu).filter(|_| !is_scaled).map(GuestTsc::unscaled)
}

/// Returns the ticks that KVM adds to the host's TSC; `None` if KVM does not tell.
fn offset(vcpu: &VcpuFd) -> Option<i64> {
    let mut offset = 0u64;
    let request = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        addr: (&raw mut offset) as u64,
        ..Default::default()
    };
    // SAFETY: the descriptor is a vCPU's. The kernel reads the request, and writes this attribute's 8 bytes
    // to `offset`, which outlives the call.
    match unsafe { ioctl_with_ref(vcpu, KVM_GET_DEVICE_ATTR(), &request) } {
        0 => Some(offset as i64),
        _ => None,
    }
}
