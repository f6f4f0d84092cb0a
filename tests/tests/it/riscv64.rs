//! The libraries compile for riscv64. No test runs the libraries on riscv64.

use hypertrace_tests::{build, capability};

/// Libraries that are compiled. trace, log and tracing are not in the list, because the test would take three
/// times as long with them.
const LIBRARIES: [&str; 3] = ["hypertrace-abi", "hypertrace-device", "hypertrace"];

#[test]
fn the_interface_the_device_and_the_guest_library_compile_for_riscv64() {
    let Some(rustc) = capability::program_of("riscv64-rust", "riscv64-rustc") else {
        return;
    };
    let (mut cargo, _) = build::cross(&rustc);

    cargo.args(["check", "--release", "--target", "riscv64gc-unknown-linux-gnu"]);
    cargo.args(LIBRARIES.map(|library| format!("--package={library}")));

    build::succeed(&mut cargo);
    capability::used("riscv64-rust");
}
