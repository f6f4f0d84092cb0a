//! A hostile guest against the device and a real session.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    hypertrace_fuzz_inputs::session(data);
});
