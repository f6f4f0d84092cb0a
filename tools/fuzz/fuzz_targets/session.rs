//! Target `session`: a hostile client of a device that records in a session, which is then read.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(session);
