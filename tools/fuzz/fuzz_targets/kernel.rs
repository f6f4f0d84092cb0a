//! Target `kernel`: reading a damaged trace of a kernel.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(kernel);
