// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate.

mod common;
mod decode_any;
mod directory;
mod foreign;
mod hostile;
mod parts;
mod shadow;
mod shadow_any;
mod shadow_linked;
mod shadow_partial;
mod symbols;
mod uftrace;
