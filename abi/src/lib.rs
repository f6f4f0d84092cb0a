// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The hypertrace wire: the memory layout that a guest and a host share, and the host code that every host
//! needs.
//!
//! A guest *client* (a vCPU or a thread) writes [`record`]s into its own ring with a [`ring::Producer`]; the
//! host reads the records with a [`ring::Consumer`]. Each [`event`] has a [`schema`], whose hash is the
//! event's id. A client sends each schema text once per lease, through its schema log. [`layout`] defines
//! every region and offset, and the [`config`] page tells the guest the sizes. [`sink`] defines the traits
//! between a device and a trace engine.
//!
//! Items that are hidden from this documentation are for hypertrace's own crates.
//!
//! The crate is `no_std`, for little-endian machines only. Only `clients` (feature `host`) and `file`
//! (feature `file`, with `std`) allocate. Neither side trusts shared memory: each side keeps its state in
//! private memory, and checks what it reads.
#![warn(missing_debug_implementations)]
#![cfg_attr(not(any(test, hypertrace_loom)), no_std)]

#[cfg(target_endian = "big")]
compile_error!("the hypertrace wire is defined for little-endian machines only");

#[cfg(feature = "host")]
extern crate alloc;
#[cfg(feature = "file")]
extern crate std;

#[doc(hidden)]
pub mod atomic;
#[doc(hidden)]
#[cfg(feature = "host")]
pub mod clients;
pub mod clock;
pub mod config;
#[doc(hidden)]
pub mod drain;
pub mod event;
#[doc(hidden)]
#[cfg(feature = "file")]
pub mod file;
mod kinds;
pub mod layout;
#[doc(hidden)]
pub mod legacy;
mod prefetch;
pub mod record;
pub mod region;
pub mod ring;
pub mod schema;
pub mod sink;
#[doc(hidden)]
pub mod slot;
pub mod trace_parent;

#[doc(hidden)]
pub use zerocopy;

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
