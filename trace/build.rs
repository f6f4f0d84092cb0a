//! Generates functions from `trace-events`.

fn main() {
    #[cfg(feature = "events")]
    hypertrace_trace_build::Builder::new().file("trace-events").generate_or_exit();
}
