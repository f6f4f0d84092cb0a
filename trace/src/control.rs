//! Control of tracing: from the VMM's code, from the VMM's command line, and through commands of the monitor
//! while a VM runs. The control switches events and backends, and shows the rings.

#[cfg(feature = "clap")]
pub mod args;
mod backends;
mod commands;
pub mod monitor;

pub use crate::events::registry::set_declared;
pub use crate::session::Matched;
pub use hypertrace_format::error::error_chain;
