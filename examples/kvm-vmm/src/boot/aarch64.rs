//! The initial state of a guest on AArch64: image in RAM, a page table, and vCPUs at EL1 with the MMU on.

use hypertrace_guest::layout;
use kvm_bindings::kvm_vcpu_init;
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use crate::error::{Error, kvm};
use crate::image;
use crate::vm::Vm;

// A block of 1 GiB in a table of level 1 (Arm ARM D8.3): memory of attribute 0, inner shareable, accessed.
const BLOCK: u64 = 1 << 0;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const ACCESSED: u64 = 1 << 10;

/// Value of TCR_EL1 (T0SZ, IRGN0, ORGN0, SH0, EPD1). Addresses have 32 bits, so tables begin at level 1.
/// Tables are in cacheable, inner shareable memory. The upper half of the addresses has no table.
const TCR: u64 = 32 | 1 << 8 | 1 << 10 | 0b11 << 12 | 1 << 23;
/// Value of MAIR_EL1: attribute 0 is normal memory, write-back. Registers of the device may also have this
/// attribute, because each access to such a register faults in the second stage. The rings and the config
/// page are RAM.
const MAIR: u64 = 0xff;
/// Value of SCTLR_EL1: the bits that are always 1, and MMU and caches (M, C, I).
const SCTLR: u64 = 0x30d0_0800 | 1 << 0 | 1 << 2 | 1 << 12;
/// Value of CPACR_EL1: no traps of floating point (FPEN).
const CPACR: u64 = 0b11 << 20;
/// Value of PSTATE: EL1 with its own stack pointer, and interrupts masked.
const PSTATE: u64 = 0x3c5;

/// Prefix of the numbers of registers of 64 bits (Linux, Documentation/virt/kvm/api.rst, 4.68).
const REGISTER: u64 = kvm_bindings::KVM_REG_ARM64 | kvm_bindings::KVM_REG_SIZE_U64;

/// Returns the index of a register in `struct kvm_regs`. `words` is the number of 64-bit words before the
/// register.
const fn core(words: u64) -> u64 {
    REGISTER | kvm_bindings::KVM_REG_ARM_CORE as u64 | words * 2
}

/// Returns KVM's id of a system register.
const fn system(op0: u64, op1: u64, crn: u64, crm: u64, op2: u64) -> u64 {
    let register = op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2;
    REGISTER | kvm_bindings::KVM_REG_ARM64_SYSREG as u64 | register
}

const X0: u64 = core(0);
const X1: u64 = core(1);
const PC: u64 = core(32);
const PSTATE_REGISTER: u64 = core(33);
const SP_EL1: u64 = core(34);
const ELR_EL1: u64 = core(35);
const SCTLR_EL1: u64 = system(3, 0, 1, 0, 0);
const CPACR_EL1: u64 = system(3, 0, 1, 0, 2);
const TTBR0_EL1: u64 = system(3, 0, 2, 0, 0);
const TCR_EL1: u64 = system(3, 0, 2, 0, 2);
const FAR_EL1: u64 = system(3, 0, 6, 0, 0);
const MAIR_EL1: u64 = system(3, 0, 10, 2, 0);

/// Writes the image and the page table to RAM, and returns the image's entry point.
pub fn load(vm: &Vm) -> Result<u64, Error> {
    for gib in 0..4 {
        let entry: u64 = gib << 30 | BLOCK | INNER_SHAREABLE | ACCESSED;
        vm.ram().write_obj(entry.to_le(), GuestAddress(layout::PAGE_TABLES + 8 * gib))?;
    }
    image::load(vm)
}

/// Makes vCPU `index`, ready to call `entry(index, ARGS)`.
pub fn create_vcpu(vm: &Vm, index: usize, entry: u64) -> Result<VcpuFd, Error> {
    let vcpu = vm.fd().create_vcpu(index as u64).map_err(kvm("KVM_CREATE_VCPU"))?;
    let mut target = kvm_vcpu_init::default();
    vm.fd().get_preferred_target(&mut target).map_err(kvm("KVM_ARM_PREFERRED_TARGET"))?;
    vcpu.vcpu_init(&target).map_err(kvm("KVM_ARM_VCPU_INIT"))?;
    let registers = [
        (MAIR_EL1, MAIR),
        (TCR_EL1, TCR),
        (TTBR0_EL1, layout::PAGE_TABLES),
        (CPACR_EL1, CPACR),
        (SCTLR_EL1, SCTLR),
        (PSTATE_REGISTER, PSTATE),
        (SP_EL1, layout::STACKS + (index as u64 + 1) * layout::STACK_SIZE),
        (X0, index as u64),
        (X1, layout::ARGS),
        (PC, entry),
    ];
    for (register, value) in registers {
        vcpu.set_one_reg(register, &value.to_le_bytes()).map_err(kvm("KVM_SET_ONE_REG"))?;
    }
    Ok(vcpu)
}

/// Returns the address from which the guest's last exception came, and the address of its last fault, for an
/// error's text.
pub fn fault(vcpu: &VcpuFd) -> (u64, u64) {
    let get = |register| {
        let mut value = [0; 8];
        vcpu.get_one_reg(register, &mut value).map_or(0, |_| u64::from_le_bytes(value))
    };
    (get(ELR_EL1), get(FAR_EL1))
}
