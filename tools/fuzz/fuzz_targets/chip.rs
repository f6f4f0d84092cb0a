//! Target `chip`: a device with a hostile client and an honest client.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(chip);
