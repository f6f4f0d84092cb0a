// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, one module per subject.

mod builder;
mod compiled;
mod errors;
mod generated;
mod printf;
mod properties;
mod syntax;
