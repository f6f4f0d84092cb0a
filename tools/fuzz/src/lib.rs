//! Inputs of the fuzz targets, and the checks of each target. On stable Rust, tests run the targets with
//! random inputs; libFuzzer runs the targets with inputs that libFuzzer chooses.
//!
//! Any bytes are an input. [`chip`] and [`session`] decode the bytes as operations of a guest ([`op::Op`])
//! and as actions of a VMM on its session ([`vmm::Act`]). The guest's device ([`rig::Rig`]) has three
//! clients: client 0 is hostile, client 1 is honest, and client 2 is idle. [`restore`] decodes the bytes as
//! operations of the guest before and after a snapshot, and as damage to the device's state. [`segment`]
//! decodes the bytes as operations of programs whose host dies. The other targets decode the bytes in these
//! ways: [`reader`] and [`recover`] as damage to the files of a session, [`monitor`] as requests of clients,
//! [`journal`] as damage to a journal, [`kernel`] as damage to the trace of a kernel, [`functions`] as damage
//! to a function trace, [`trace_events`] as a file of declarations, and [`vfio_user`] as messages of a VMM.

pub mod chip;
pub mod functions;
pub mod input;
pub mod journal;
pub mod kernel;
pub mod meter;
pub mod monitor;
pub mod op;
pub mod reader;
pub mod recorder;
pub mod recover;
pub mod restore;
pub mod rig;
pub mod segment;
pub mod session;
pub mod setup;
pub mod simple;
pub mod trace_events;
pub mod vfio_user;
pub mod vmm;

/// Events declared in `trace-events`.
pub mod trace {
    hypertrace_trace::include_events!();
}

/// Defines a target that runs a module of this crate. Without cargo-fuzz, the target is a program that says
/// how to run the target.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name::run(data));

        #[cfg(not(fuzzing))]
        fn main() {
            eprintln!("run it with: cargo +nightly fuzz run {}", stringify!($name));
        }
    };
}
