//! Target `session`: a device with a hostile client records in a session, and a reader reads the session.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(session);
