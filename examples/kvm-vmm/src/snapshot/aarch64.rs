//! State of a vCPU of AArch64: all registers that KVM lists, including the guest's counter.

use kvm_bindings::RegList;
use serde::{Deserialize, Serialize};
use vmm_sys_util::errno::Error as Errno;

use crate::error::{Error, kvm};
use crate::machine::Vcpu;

/// Maximum number of registers that kvm-bindings takes. A vCPU without vectors of variable length has some
/// 240 registers.
const MAX_REGISTERS: usize = 500;

#[derive(Debug, Serialize, Deserialize)]
pub struct VcpuState {
    has_ended: bool,
    /// Numbers and values of the registers, in KVM's order.
    registers: Vec<(u64, Vec<u8>)>,
}

impl VcpuState {
    pub fn save(vcpu: &Vcpu) -> Result<VcpuState, Error> {
        let list = "KVM_GET_REG_LIST";
        let mut registers =
            RegList::new(MAX_REGISTERS).map_err(|_| kvm(list)(Errno::new(libc::E2BIG)))?;
        vcpu.fd.get_reg_list(&mut registers).map_err(kvm(list))?;
        let value = |register: &u64| {
            let mut value = vec![0; size(*register)];
            vcpu.fd.get_one_reg(*register, &mut value).map_err(kvm("KVM_GET_ONE_REG"))?;
            Ok((*register, value))
        };
        let registers = registers.as_slice().iter().map(value).collect::<Result<_, Error>>()?;
        Ok(VcpuState { has_ended: vcpu.has_ended, registers })
    }

    pub fn restore(&self, vcpu: &mut Vcpu) -> Result<(), Error> {
        for (register, value) in &self.registers {
            vcpu.fd.set_one_reg(*register, value).map_err(kvm("KVM_SET_ONE_REG"))?;
        }
        vcpu.has_ended = self.has_ended;
        Ok(())
    }
}

/// Returns the size of a register in bytes. KVM's id of the register contains the size.
fn size(register: u64) -> usize {
    1 << ((register & kvm_bindings::KVM_REG_SIZE_MASK) >> kvm_bindings::KVM_REG_SIZE_SHIFT)
}
