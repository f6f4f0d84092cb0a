//! Target `resume`: recovery of a damaged session and segment.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hypertrace_fuzz::resume::run(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run it with: cargo +nightly fuzz run resume");
}
