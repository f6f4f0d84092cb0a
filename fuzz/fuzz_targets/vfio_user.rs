//! Target `vfio_user`: a hostile VMM against the server of vfio-user.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hypertrace_fuzz::vfio_user::run(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("run it with: cargo +nightly fuzz run vfio_user");
}
