//! Sessions and function traces in the formats of other readers.
//!
//! - [`uftrace`] makes a directory that uftrace reads, with a session's events among the calls.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod error;
pub mod uftrace;

pub use error::{Error, Result};
