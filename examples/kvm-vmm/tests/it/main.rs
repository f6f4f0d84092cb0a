// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate. Each module has a subject.

mod common;
mod device;
mod guest;
mod idle;
mod session;
mod snapshot;
