//! Target `monitor`: requests of a monitor's clients.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(monitor);
