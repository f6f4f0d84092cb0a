// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, one module for each subject.

mod channel;
mod common;
mod device;
mod no_device;
mod plain_user;
mod processes;
mod signals;
mod threads;
