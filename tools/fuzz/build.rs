//! Generates the functions declared in `trace-events`.

fn main() {
    hypertrace_trace_build::Builder::new().file("trace-events").generate_or_exit();
}
