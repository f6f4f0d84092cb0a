//! Sessions: a directory that fills with what guests and the VMM do.
//!
//! [`Session`] is the handle, [`Engine`](engine::Engine) the drain loop's side of it,
//! [`recover`] makes one of what a killed process left.

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
