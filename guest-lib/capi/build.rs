//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhypertrace.so");
    // It has a thread and hooks of a process's end: `dlclose` must not take their code away.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
