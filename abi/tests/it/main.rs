// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, one module for each subject.

mod common;
mod losses;
mod ring;
mod wake;
