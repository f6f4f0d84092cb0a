//! Target `restore`: a device is saved and restored, and its state is damaged.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(restore);
