//! Target `reader`: reading a damaged session.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(reader);
