//! Target `restore`: a device that is saved and restored, and damage to its state.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(restore);
