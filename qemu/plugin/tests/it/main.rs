// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate.

mod common;
mod functions;
mod functions_boot;
mod kills;
mod linux;
mod options;
mod points;
mod processes;
mod versions;
