//! A hostile guest against the device, with memory that changes while it is
//! read.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hypertrace_fuzz_inputs::chip(data));
