//! Counts how often each function of a guest begins: how often a call has reached the function's first
//! instruction, and how often other code has reached this instruction.
//!
//! This count is slow and simple: tests compare the fast count of a function trace with this count. If an
//! interrupt comes between a call and the function's first instruction, then the call is not counted as a
//! call, because the guest has executed other code meanwhile.

use hypertrace_functions::decode::{Architecture, InstructionKind, decode};
use hypertrace_functions::symbols::{Source, Symbols};
use hypertrace_qemu::api::{Block, Events, Instruction, Qemu, Reads};
use std::cell::Cell;
use std::error::Error;
use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Architecture of the guest's instructions.
static ARCHITECTURE: OnceLock<Architecture> = OnceLock::new();
/// Functions, sorted by address, and the counts of their executions.
static FUNCTIONS: OnceLock<Vec<Function>> = OnceLock::new();

struct Function {
    address: u64,
    by_call: AtomicU64,
    otherwise: AtomicU64,
}

thread_local! {
    /// Whether the last instruction of this thread's vCPU was a call.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Begins to count the functions whose symbols are in this file.
pub fn install(qemu: &Qemu, symbols: &str) -> Result<(), Box<dyn Error>> {
    let architecture = match qemu.target.as_str() {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        other => return Err(format!("no instructions of {other} are known").into()),
    };
    let _ = ARCHITECTURE.set(architecture);
    let symbols = Symbols::read(&symbols.parse::<Source>()?)?;
    let function =
        |address| Function { address, by_call: AtomicU64::new(0), otherwise: AtomicU64::new(0) };
    let functions = symbols.iter().map(|symbol| function(symbol.address)).collect();
    let _ = FUNCTIONS.set(functions);
    qemu.on_translation::<Starts>();
    qemu.on_end::<Starts>();
    Ok(())
}

struct Starts;

impl Events for Starts {
    fn translated(block: &Block) {
        for (index, instruction) in block.instructions().enumerate() {
            let address = instruction.address() & ((1 << 48) - 1);
            let functions = FUNCTIONS.get().map_or(&[][..], |functions| &functions[..]);
            let found = functions.binary_search_by_key(&address, |function| function.address);
            match found {
                Ok(at) => {
                    let function = std::ptr::from_ref(&functions[at]);
                    instruction.on_execution(Reads::Nothing, starts, function as u64);
                }
                // A call ends its block, so the called instruction begins a block.
                Err(_) if index == 0 => instruction.on_execution(Reads::Nothing, continues, 0),
                Err(_) => {}
            }
            if is_call(&instruction) {
                instruction.on_execution(Reads::Nothing, calls, 0);
            }
        }
    }

    fn ended() {
        for Function { address, by_call, otherwise } in FUNCTIONS.get().into_iter().flatten() {
            let (by_call, otherwise) = (by_call.load(Relaxed), otherwise.load(Relaxed));
            if by_call + otherwise > 0 {
                eprintln!("probe: start {address:x} {by_call} {otherwise}");
            }
        }
    }
}

fn is_call(instruction: &Instruction<'_>) -> bool {
    let Some(&architecture) = ARCHITECTURE.get() else { return false };
    let address = instruction.address();
    let found = instruction.with_bytes(|bytes| decode(architecture, bytes, address));
    // On AArch64, a call whose target is just ahead calls a function; on x86-64, such a call has another
    // purpose.
    let is_ahead = architecture == Architecture::Aarch64;
    found.is_some_and(|found| {
        found.kind.is_call() || is_ahead && found.kind == InstructionKind::CallAhead
    })
}

extern "C" fn calls(_: c_uint, _: *mut c_void) {
    CALLS.set(true);
}

extern "C" fn continues(_: c_uint, _: *mut c_void) {
    CALLS.set(false);
}

extern "C" fn starts(_: c_uint, function: *mut c_void) {
    // SAFETY: `translated` has registered this pointer with the callback, and the functions live as long as
    // the process.
    let function = unsafe { &*function.cast::<Function>() };
    let counter = if CALLS.replace(false) { &function.by_call } else { &function.otherwise };
    counter.fetch_add(1, Relaxed);
}
