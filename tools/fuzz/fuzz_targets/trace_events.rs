//! Target `trace_events`: parsing a file of declared events.
#![cfg_attr(fuzzing, no_main)]

hypertrace_fuzz::target!(trace_events);
