// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors of an export.

use hypertrace_format::error::BadInput;
use std::io;

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A session cannot be read.
    #[error(transparent)]
    Timeline(#[from] hypertrace_timeline::Error),
    /// A function trace cannot be read, or the directory cannot be written.
    #[error(transparent)]
    Functions(#[from] hypertrace_functions::Error),
    /// The session has no functions, and no function trace was given.
    #[error(
        "no functions: give the directory of a function trace, or trace a program whose functions are compiled in \
         (events function_entry and function_exit)"
    )]
    NoFunctions,
    /// The inputs have no session, and an input's times can be placed only with the help of a session.
    #[error("no session: give the directory of one, of the same boot")]
    NoSession,
    /// The output cannot be written.
    #[error("cannot write")]
    Write(#[source] io::Error),
    /// There are more fields than a table has columns.
    #[error(
        "these events have {fields} fields, and a table has at most {most}: choose events with --event"
    )]
    ManyFields {
        /// Number of fields.
        fields: usize,
        /// Maximum number of columns of fields.
        most: usize,
    },
}

/// Result of an export.
pub type Result<T> = std::result::Result<T, Error>;

impl BadInput for Error {
    fn is_bad_input(&self) -> bool {
        match self {
            Error::Timeline(error) => error.is_bad_input(),
            Error::Functions(error) => error.is_bad_input(),
            Error::NoFunctions | Error::ManyFields { .. } | Error::NoSession => true,
            Error::Write(_) => false,
        }
    }
}
