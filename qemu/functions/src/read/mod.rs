// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reads directories of uftrace's format, and adds up the times of functions.
//!
//! [`Trace`] opens a directory. [`Records`] iterates over a task's records, and [`Calls`] iterates over a
//! task's calls. [`Summary`] adds up calls by function and caller.
//!
//! Files may be cut anywhere and have any contents. From a damaged file, a reader returns all readable parts,
//! and an error that names the file and the byte. The constants in this module limit a reader's memory,
//! whatever numbers the files contain.

mod calls;
mod describe;
mod flame;
mod paths;
mod records;
mod spans;
mod summary;
mod trace;

pub use calls::{Call, Calls};
pub use flame::{Flame, Frame, MAX_STACKS};
pub use paths::MAX_PATHS;
pub use records::Records;
pub use spans::Spans;
pub use summary::{By, Caller, Function, MAX_FUNCTIONS, Summary};
pub use trace::Trace;

/// Maximum number of tasks of a directory.
pub const MAX_TASKS: usize = 1 << 16;

/// Maximum size of `info`, of `task.txt`, and of all maps together, in bytes.
pub const MAX_DESCRIPTION: u64 = 16 << 20;

/// Maximum number of modules of a directory.
pub const MAX_MODULES: usize = 1 << 12;

/// Maximum size of the symbols of all modules in bytes. The symbols of a kernel with all its modules have
/// about 10 MB.
pub const MAX_SYMBOLS: u64 = 64 << 20;
