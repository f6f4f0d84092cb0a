// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, with a module for each subject.

mod simulation;
mod stats;
