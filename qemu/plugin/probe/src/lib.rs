//! A plugin for tests. The plugin prints what QEMU's plugin API returns.
//!
//! The plugin asks for the version of the API that `HYPERTRACE_PROBE_API` names, so that one library is
//! enough for all releases of QEMU. The plugin prints details of the first instructions only, but counts all
//! instructions. Each line begins with `probe: `. With the option `symbols=FILE`, the plugin counts the
//! executions of functions instead (`starts`). The code is unsafe because QEMU calls the plugin from C.
#![allow(unsafe_code)]

mod starts;

use hypertrace_qemu::api::{Access, Accesses, Block, Events, Library, Qemu, Reads, Registers, log};
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Environment variable with the version of the API that the plugin asks for.
const API: &str = "HYPERTRACE_PROBE_API";
/// Number of instructions, of executions and of accesses that are printed.
const PRINTED: u64 = 16;

/// Counters. Each counter has its name in the last line that the plugin prints.
static COUNTS: [(&str, AtomicU64); 9] = [
    ("blocks", AtomicU64::new(0)),
    ("instructions", AtomicU64::new(0)),
    ("executions", AtomicU64::new(0)),
    ("accesses", AtomicU64::new(0)),
    ("started", AtomicU64::new(0)),
    ("idle", AtomicU64::new(0)),
    ("resumed", AtomicU64::new(0)),
    ("ended", AtomicU64::new(0)),
    ("flushed", AtomicU64::new(0)),
];

thread_local! {
    /// Registers of this thread's vCPU.
    static REGISTERS: RefCell<Option<Registers>> = const { RefCell::new(None) };
}

/// Adds 1 to a counter. Returns true in the first [`PRINTED`] calls with this counter.
fn count(name: &str) -> bool {
    let counter = COUNTS.iter().find(|(known, _)| *known == name);
    counter.is_some_and(|(_, count)| count.fetch_add(1, Relaxed) < PRINTED)
}

/// Returns this library. The library asks for the version that the environment names.
fn any() -> Library {
    let first = std::env::var(API).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    Library { file: "libhypertrace_qemu_probe.so", first, last: c_int::MAX, emulators: "any" }
}

hypertrace_qemu::library!(any(), install);

fn install(qemu: &Qemu, options: &[&[u8]]) -> Result<(), Box<dyn Error>> {
    if let Some(symbols) = options.iter().find_map(|option| option.strip_prefix(b"symbols=")) {
        return starts::install(qemu, str::from_utf8(symbols)?);
    }
    let kind = if qemu.is_machine { "machine" } else { "program" };
    eprintln!("probe: {kind} {} api {}", qemu.target, qemu.version);
    qemu.on_translation::<Probe>();
    qemu.on_vcpu_start::<Probe>();
    qemu.on_vcpu_idle::<Probe>();
    qemu.on_vcpu_resume::<Probe>();
    qemu.on_vcpu_end::<Probe>();
    qemu.on_flush::<Probe>();
    qemu.on_end::<Probe>();
    Ok(())
}

struct Probe;

impl Events for Probe {
    fn translated(block: &Block) {
        if count("blocks") {
            let address = block.instructions().next().map(|first| first.address());
            eprintln!("probe: block {address:x?} with cs {:x?}", read(["cs"]).map(|[cs]| cs));
        }
        for instruction in block.instructions() {
            if !count("instructions") {
                continue;
            }
            let address = instruction.address();
            let is_mapped = instruction.host_address().is_some();
            instruction.with_bytes(|bytes| {
                eprintln!("probe: code {address:#x} {bytes:02x?} mapped {is_mapped}");
            });
            instruction.on_execution(Reads::Registers, executed, address);
            for accesses in [Accesses::Loads, Accesses::Stores] {
                instruction.on_access(accesses, Reads::Nothing, accessed, address);
            }
        }
    }

    fn vcpu_started(vcpu: c_uint) {
        count("started");
        let registers = Registers::list();
        let names = ["rax", "rsp", "x0", "sp", "nonsense"];
        let is_there = |name: &&str| registers.as_ref().is_some_and(|all| all.find(name).is_some());
        let found: Vec<&str> = names.into_iter().filter(is_there).collect();
        eprintln!("probe: vcpu {vcpu} registers {found:?}");
        REGISTERS.set(registers);
    }

    fn vcpu_idle(_: c_uint) {
        count("idle");
    }

    fn vcpu_resumed(_: c_uint) {
        count("resumed");
    }

    fn vcpu_ended(_: c_uint) {
        count("ended");
    }

    fn flushed() {
        count("flushed");
    }

    fn ended() {
        let counts = COUNTS.iter().map(|(name, count)| format!(" {name} {}", count.load(Relaxed)));
        let line = format!("probe: end{}\n", counts.collect::<String>());
        // The line also goes to QEMU's log, which `-d plugin` shows.
        eprint!("{line}");
        log(&line.replace("probe", "logged"));
    }
}

/// Reads registers of this thread's vCPU. Returns `None` if the vCPU lacks one of these registers.
fn read<const N: usize>(names: [&str; N]) -> Option<[u64; N]> {
    REGISTERS.with_borrow_mut(|registers| {
        let registers = registers.as_mut()?;
        let mut values = [0; N];
        for (value, name) in values.iter_mut().zip(names) {
            *value = registers.read(registers.find(name)?)?;
        }
        Some(values)
    })
}

extern "C" fn executed(vcpu: c_uint, address: *mut c_void) {
    if !count("executions") {
        return;
    }
    let values = read(["rax", "rsp"]);
    eprintln!("probe: executed {:#x} on {vcpu}, rax and rsp {values:x?}", address as u64);
}

extern "C" fn accessed(vcpu: c_uint, access: Access, at: u64, address: *mut c_void) {
    if !count("accesses") {
        return;
    }
    let kind = if access.is_store() { "store" } else { "load" };
    let value = access.value();
    eprintln!("probe: {kind} of {:#x} on {vcpu} at {at:#x}: {value:x?}", address as u64);
}
