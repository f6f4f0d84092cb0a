//! Control while a VM runs, from code, from the command line, and by the monitor's commands: switches events
//! and backends, and shows the rings.

#[cfg(feature = "clap")]
pub mod args;
mod backends;
mod commands;
pub mod monitor;

pub use crate::events::registry::set_declared;
pub use crate::session::Matched;
pub use hypertrace_format::error::error_chain;
