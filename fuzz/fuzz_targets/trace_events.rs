//! Target `trace_events`: parsing a file of declared events.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hypertrace_fuzz::trace_events::run(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run it with: cargo +nightly fuzz run trace_events");
}
