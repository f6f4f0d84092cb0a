//! Target `chip`: a hostile client of the device beside an honest one.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(chip);
