//! Generates the functions declared in `trace-events`, and passes on whether the tests are optimized.

fn main() {
    hypertrace_trace_build::Builder::new().file("trace-events").generate_or_exit();
    let level = std::env::var("OPT_LEVEL").expect("cargo sets it for build scripts");
    println!("cargo::rustc-env=HYPERTRACE_OPT_LEVEL={level}");
}
