//! The smallest VMM with the hypertrace device: one vCPU, whose guest makes three reference points `tick(n)`.

use hypertrace_abi::schema::{id_of, name_hash};
use hypertrace_vmm::{DeviceConfig, Hypertrace, Region, SessionConfig, kvm::KvmVm};
use kvm_bindings::{kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap};

/// Address of the device's window, beyond RAM.
const WINDOW: u64 = 0xd000_0000;

// The guest, in 32-bit mode: edi is its client's memory, esi its register EMIT, ebx the event's id, ecx the
// hash of its name.
std::arch::global_asm!(
    ".code32; guest: mov [edi + 0x2000], ebx; mov dword ptr [edi + 0x2004], 11", // the schema log: id, bytes, text
    "mov dword ptr [edi + 0x2008], 0x6b636974; mov dword ptr [edi + 0x200c], 0x753a6e28",
    "mov dword ptr [edi + 0x2010], 0x293436; mov dword ptr [edi + 0x80], 3", // its length in words
    "0: inc ebp; mov [edi + 0x400], ebp; mov [edi + 0x404], ebx; mov [edi + 0x408], ecx", // the slot: seq, id, hash
    "rdtsc; mov [edi + 0x410], eax; mov [edi + 0x414], edx; mov dword ptr [edi + 0x418], 1", // time, words
    "mov [edi + 0x420], ebp; mov [esi], ebp; mov dword ptr [esi + 4], 0", // n; the store to EMIT
    "cmp ebp, 3; jb 0b; hlt; .org guest + 128; .code64",
);
unsafe extern "C" {
    static guest: [u8; 128];
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: smallest-vmm DIR")?;
    let hypertrace = Hypertrace::start(SessionConfig::new(dir), DeviceConfig::new(1))?;

    let vm = Kvm::new()?.create_vm()?;
    let ram = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)])?;
    // SAFETY: the assembler has put 128 bytes at `guest`.
    ram.write_slice(unsafe { &guest }, GuestAddress(0))?;
    let userspace_addr = ram.get_host_address(GuestAddress(0))? as u64;
    let slot =
        kvm_userspace_memory_region { memory_size: 0x1000, userspace_addr, ..Default::default() };
    // SAFETY: RAM and the device live longer than the vCPU runs.
    let calls =
        unsafe { vm.set_user_memory_region(slot) }.map(|()| unsafe { KvmVm::new(&vm, 1) })??;
    let window = hypertrace.device().place_window(&calls, WINDOW)?;

    let geometry = hypertrace.chip().geometry();
    let at = |region, offset| WINDOW + geometry.window_offset(region) + offset;
    let mut vcpu = vm.create_vcpu(0)?;
    let mut sregs = vcpu.get_sregs()?;
    sregs.cr0 |= 1; // protected mode, with flat segments
    (sregs.cs.base, sregs.cs.limit, sregs.cs.db, sregs.cs.g) = (0, u32::MAX, 1, 1);
    (sregs.ds.limit, sregs.ds.db, sregs.ds.g) = (u32::MAX, 1, 1);
    vcpu.set_sregs(&sregs)?;
    vcpu.set_regs(&kvm_regs {
        rdi: at(Region::Rings, geometry.client_offset(0)),
        rsi: at(Region::Control, geometry.control_pages_offset()),
        rbx: id_of("tick(n:u64)").into(),
        rcx: name_hash("tick").into(),
        rflags: 2,
        ..Default::default()
    })?;
    loop {
        match vcpu.run()? {
            VcpuExit::MmioRead(gpa, data) => window.read(gpa - WINDOW, data),
            VcpuExit::MmioWrite(gpa, data) => window.write(gpa - WINDOW, data),
            VcpuExit::Hlt => break,
            exit => return Err(format!("{exit:?}").into()),
        }
    }
    let summary = hypertrace.finish()?;
    println!("{} points, {} lost", summary.reference_points, summary.lost);
    Ok(())
}
