//! The initial state of a guest: image in RAM, page tables, and vCPUs in 64-bit user mode.
//!
//! The guest is in user mode from the first instruction for two reasons. The programs need nothing more.
//! Hypervisors that are themselves guests (PVM) run user code natively, but they emulate supervisor code, and
//! without SSE.

use hypertrace_guest::layout;
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use crate::error::{Error, kvm};
use crate::image;
use crate::vm::Vm;

const PAGE: u64 = 0x1000;

// Page table entries (Intel SDM vol. 3, 4.5).
const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;

// Control registers (2.5) and EFER (2.2.1).
const CR0_PE: u64 = 1 << 0;
const CR0_MP: u64 = 1 << 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

/// Bit 1 of RFLAGS is always set.
const RFLAGS: u64 = 1 << 1;

/// Writes the image and the page tables to RAM, and returns the image's entry point.
pub fn load(vm: &Vm) -> Result<u64, Error> {
    let entry = image::load(vm)?;

    let link = PRESENT | WRITABLE | USER;
    let pml4 = layout::PAGE_TABLES;
    let pdpt = pml4 + PAGE;
    write_entry(vm, pml4, 0, pdpt | link)?;
    for gib in 0..4 {
        let directory = pdpt + PAGE + gib * PAGE;
        write_entry(vm, pdpt, gib, directory | link)?;
        for page in 0..512 {
            write_entry(vm, directory, page, gib << 30 | page << 21 | link | LARGE)?;
        }
    }
    Ok(entry)
}

fn write_entry(vm: &Vm, table: u64, index: u64, entry: u64) -> Result<(), Error> {
    Ok(vm.ram().write_obj(entry.to_le(), GuestAddress(table + 8 * index))?)
}

/// Makes vCPU `index`, ready to call `entry(index, ARGS)`.
pub fn create_vcpu(vm: &Vm, index: usize, entry: u64) -> Result<VcpuFd, Error> {
    let vcpu = vm.fd().create_vcpu(index as u64).map_err(kvm("KVM_CREATE_VCPU"))?;
    let cpuid = vm
        .kvm()
        .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
        .map_err(kvm("KVM_GET_SUPPORTED_CPUID"))?;
    vcpu.set_cpuid2(&cpuid).map_err(kvm("KVM_SET_CPUID2"))?;

    let mut sregs = vcpu.get_sregs().map_err(kvm("KVM_GET_SREGS"))?;
    sregs.cr0 = CR0_PE | CR0_MP | CR0_ET | CR0_NE | CR0_PG;
    sregs.cr3 = layout::PAGE_TABLES;
    sregs.cr4 = CR4_PAE | CR4_OSFXSR | CR4_OSXMMEXCPT;
    sregs.efer = EFER_LME | EFER_LMA;
    sregs.cs = user_segment(1, 0xb);
    let data = user_segment(2, 0x3);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    vcpu.set_sregs(&sregs).map_err(kvm("KVM_SET_SREGS"))?;

    // The stack has to be aligned to 16 bytes *before* a call pushes its return address, and nothing calls
    // the entry point.
    let stack = layout::STACKS + (index as u64 + 1) * layout::STACK_SIZE - 8;
    let regs = kvm_regs {
        rip: entry,
        rsp: stack,
        rdi: index as u64,
        rsi: layout::ARGS,
        rflags: RFLAGS,
        ..Default::default()
    };
    vcpu.set_regs(&regs).map_err(kvm("KVM_SET_REGS"))?;
    Ok(vcpu)
}

/// Returns the guest's instruction pointer and the address of its last page fault, for an error's text.
pub fn fault(vcpu: &VcpuFd) -> (u64, u64) {
    let rip = vcpu.get_regs().map_or(0, |regs| regs.rip);
    (rip, vcpu.get_sregs().map_or(0, |sregs| sregs.cr2))
}

/// Returns a flat segment of privilege level 3: `kind` 0xb is 64-bit code, 0x3 is data. The
/// selectors have no descriptor table, because no code loads a segment register.
fn user_segment(index: u16, kind: u8) -> kvm_segment {
    let code = kind == 0xb;
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: index << 3 | 3,
        type_: kind,
        present: 1,
        dpl: 3,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..Default::default()
    }
}
