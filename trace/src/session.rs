//! Sessions. A session is a directory that receives the events of guests and of the VMM.
//!
//! [`Session`] is the handle of a session, and [`Engine`](engine::Engine) is the drain loop's side.
//! [`recover`] makes a session of the records that a killed process left in its rings.

pub(crate) mod config;
mod create;
pub(crate) mod engine;
pub(crate) mod error;
mod handle;
mod place;
pub(crate) mod recover;
mod simple_file;
mod sink;
pub(crate) mod summary;
mod writer;

pub(crate) use config::default_open_files;
pub use config::{Destination, Output, SessionConfig};
pub use error::SessionError;
pub use handle::{Matched, Session, attach};
pub(crate) use place::prepare;
pub use recover::Committed;
pub(crate) use recover::is_stream;
pub use summary::Summary;
pub use writer::Writer;
