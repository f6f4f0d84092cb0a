//! Target `segment`: recovery of a segment whose host died.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(segment);
