//! Records of the crate [`log`] as events of hypertrace, in a guest or in a VMM.
//!
//! ```
//! # #[cfg(feature = "guest")] {
//! let logger = Box::leak(Box::new(hypertrace_log::Logger::guest()));
//! log::set_logger(logger).expect("no other logger");
//! log::set_max_level(log::LevelFilter::Debug);
//!
//! log::info!("disk {} opened", 3);
//! # }
//! ```
//!
//! A record is an event `log_error`, `log_warn`, `log_info`, `log_debug` or `log_trace`, with the fields
//! `target`, `message` and `cut`. Because each level is an event, `hypertrace ctl` can switch a level on or
//! off while the program runs: `hypertrace ctl -d DIR trace-event log_debug off`. A record whose event is off
//! is not formatted.
//!
//! [`Logger::guest`] (feature `guest`, the default) records into the ring of a guest's or a program's thread.
//! [`Logger::host`] (feature `host`) records into a VMM's backends, where the five events are declared
//! events, which are off until they are switched on. [`Logger::and`] passes all records on to another logger.
//!
//! # Limits
//!
//! A message is formatted into [`MESSAGE_BYTES`] bytes on the stack. The field `cut` is the number of bytes
//! that did not fit; 0 for a whole message. A record that is made while the same thread formats another
//! record is dropped and counted: see [`nested`]. Key-value pairs of records are not recorded. The logger
//! allocates nothing and takes no lock.
#![warn(missing_debug_implementations)]

mod destination;
#[cfg(feature = "guest")]
mod guest;
#[cfg(feature = "host")]
mod host;
mod logger;
mod message;

pub use logger::{Logger, NoLogger};
pub use message::{MESSAGE_BYTES, nested};

#[cfg(feature = "guest")]
pub use guest::Guest;
#[cfg(feature = "host")]
pub use host::Host;

/// Items that `hypertrace-tracing` uses.
#[doc(hidden)]
pub mod parts {
    pub use crate::destination::Destination;
    pub use crate::message::{Formatting, Message};
}

// The example of README.md.
#[cfg(all(doctest, feature = "guest"))]
#[doc = include_str!("../README.md")]
struct Readme;
