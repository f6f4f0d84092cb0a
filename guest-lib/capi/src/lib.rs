//! The guest library for C and C++: libhypertrace.a and libhypertrace.so.
//!
//! ```text
//! macro in hypertrace.h -> site    a static of the call site: names, types; id and mask slot once known
//!   | event is on            |
//!   v                        v
//! event: emit, commit, point -> hypertrace::this_thread, as Rust's macros
//! ```
//!
//! The module `functions` records events without a call site, for functions that are compiled
//! with `-finstrument-functions`.
//!
//! `cargo xtask header` generates `include/hypertrace.h` from this crate and
//! from `macros.h`.

pub mod event;
pub mod functions;
pub mod interface_2016;
pub mod process;
pub mod site;
