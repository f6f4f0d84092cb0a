//! State of a vCPU of x86-64.

use kvm_bindings::{Msrs, kvm_fpu, kvm_msr_entry, kvm_regs, kvm_sregs};
use serde::{Deserialize, Serialize};
use vmm_sys_util::errno::Error as Errno;

use crate::error::{Error, kvm};
use crate::machine::Vcpu;

/// Time stamp counter, as a model-specific register (Intel SDM vol. 4).
const MSR_TSC: u32 = 0x10;

#[derive(Debug, Serialize, Deserialize)]
pub struct VcpuState {
    has_ended: bool,
    regs: kvm_regs,
    sregs: kvm_sregs,
    #[serde(with = "Fpu")]
    fpu: kvm_fpu,
    tsc: u64,
}

/// The members of `kvm_fpu`, which has no serialization of its own.
#[derive(Serialize, Deserialize)]
#[serde(remote = "kvm_fpu")]
struct Fpu {
    fpr: [[u8; 16]; 8],
    fcw: u16,
    fsw: u16,
    ftwx: u8,
    pad1: u8,
    last_opcode: u16,
    last_ip: u64,
    last_dp: u64,
    xmm: [[u8; 16]; 16],
    mxcsr: u32,
    pad2: u32,
}

impl VcpuState {
    pub fn save(vcpu: &Vcpu) -> Result<VcpuState, Error> {
        let fd = &vcpu.fd;
        let mut msrs = tsc(0)?;
        fd.get_msrs(&mut msrs).map_err(kvm("KVM_GET_MSRS"))?;
        Ok(VcpuState {
            has_ended: vcpu.has_ended,
            regs: fd.get_regs().map_err(kvm("KVM_GET_REGS"))?,
            sregs: fd.get_sregs().map_err(kvm("KVM_GET_SREGS"))?,
            fpu: fd.get_fpu().map_err(kvm("KVM_GET_FPU"))?,
            tsc: msrs.as_slice().first().map_or(0, |msr| msr.data),
        })
    }

    pub fn restore(&self, vcpu: &mut Vcpu) -> Result<(), Error> {
        let fd = &vcpu.fd;
        fd.set_sregs(&self.sregs).map_err(kvm("KVM_SET_SREGS"))?;
        fd.set_regs(&self.regs).map_err(kvm("KVM_SET_REGS"))?;
        fd.set_fpu(&self.fpu).map_err(kvm("KVM_SET_FPU"))?;
        fd.set_msrs(&tsc(self.tsc)?).map_err(kvm("KVM_SET_MSRS"))?;
        vcpu.has_ended = self.has_ended;
        Ok(())
    }
}

fn tsc(data: u64) -> Result<Msrs, Error> {
    let entry = kvm_msr_entry { index: MSR_TSC, data, ..Default::default() };
    // `from_entries` fails only if KVM cannot take so many entries.
    Msrs::from_entries(&[entry]).map_err(|_| kvm("KVM_GET_MSRS")(Errno::new(libc::E2BIG)))
}
