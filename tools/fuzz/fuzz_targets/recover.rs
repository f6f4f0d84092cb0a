//! Target `recover`: recovery of a damaged session and segment.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(recover);
