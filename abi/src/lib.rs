//! The hypertrace wire: what a guest and a host share, and the host's side of
//! it that every host needs.
//!
//! A guest *client* (a vCPU or a thread) writes [`record`]s into its own ring
//! with a [`ring::Producer`]; the host takes them with a [`ring::Consumer`].
//! Events describe themselves: an [`event`] has a [`schema`] whose hash is its
//! id, and the text reaches the host once, through the client's schema log.
//! [`layout`] says where everything is, [`config`] how the host tells the
//! guest, [`slot`] what the host does with a reference point, and [`sink`] is
//! the one trait at which a device and a trace engine meet. [`turns`] is how
//! all drain loops share their time between clients.
//!
//! `no_std`, no allocation, little-endian machines only. What one side wrote
//! is a hint to the other: each keeps its own truth in private memory.
#![warn(missing_debug_implementations)]
#![cfg_attr(not(any(test, hypertrace_loom)), no_std)]

#[cfg(target_endian = "big")]
compile_error!("the hypertrace wire is defined for little-endian machines only");

pub mod atomic;
pub mod clock;
pub mod config;
pub mod event;
pub mod layout;
mod prefetch;
pub mod record;
pub mod ring;
pub mod schema;
pub mod sink;
pub mod slot;
pub mod turns;

#[doc(hidden)]
pub use zerocopy;
