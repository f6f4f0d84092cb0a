//! Generates the functions for the events in the file `trace-events`. Only hosts use these functions.

fn main() {
    #[cfg(feature = "host")]
    hypertrace_trace_build::Builder::new().file("trace-events").generate_or_exit();
}
