// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The hypertrace wire: the layout that a guest and a host share, and the parts of
//! the host's side that every host needs.
//!
//! A guest *client* (a vCPU or a thread) writes [`record`]s into its own ring
//! with a [`ring::Producer`]; the host takes them with a [`ring::Consumer`].
//! Events describe themselves: an [`event`] has a [`schema`] whose hash is its
//! id, and the text reaches the host once, through the client's schema log.
//! [`layout`] defines every region and offset, and the [`config`] page describes
//! them to the guest. [`sink`] is the one trait between a device and a trace engine.
//!
//! Items that this documentation hides are for hypertrace's own crates.
//!
//! `no_std`, no allocation except in `clients` (feature `host`) and `file` (feature `file`, with `std`), little-endian
//! machines only. Neither side trusts shared memory: each keeps its own state in private memory, and checks what it reads.
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
