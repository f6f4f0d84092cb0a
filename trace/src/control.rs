//! Control while a VM runs: which events are on, which backends there are, and what the
//! rings hold. From code, from the command line, and as the monitor's commands.

#[cfg(feature = "clap")]
pub mod args;
mod commands;
pub mod monitor;

pub use commands::{Matched, set_declared, told};
