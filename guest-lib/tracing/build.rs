//! Makes functions of `trace-events`, for hosts.

fn main() {
    #[cfg(feature = "host")]
    hypertrace_trace_build::Builder::new().file("trace-events").generate_or_exit();
}
