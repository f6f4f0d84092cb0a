//! Target `session`: a hostile client of a device that records in a session, which is then read.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hypertrace_fuzz::session::run(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run it with: cargo +nightly fuzz run session");
}
