//! Target `functions`: reading a damaged function trace.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hypertrace_fuzz::functions::run(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run it with: cargo +nightly fuzz run functions");
}
