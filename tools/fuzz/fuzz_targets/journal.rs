//! Target `journal`: receiving a damaged journal.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(journal);
