//! Target `functions`: reading a damaged function trace.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(functions);
