//! A segment: a file with the regions of a device in it, which programs share with the host of a session.
//!
//! ```
//! use hypertrace_abi::config::HostInfo;
//! use hypertrace_abi::layout::Geometry;
//! use hypertrace_segment::Segment;
//!
//! # fn main() -> Result<(), hypertrace_segment::SegmentError> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("segment");
//! // The host of a session.
//! let host = Segment::create(&path, None, &Geometry::default(), &HostInfo::default())?;
//! // A program.
//! let program = Segment::open(&path)?;
//! program.local().ring(3);
//! assert_ne!(host.local().bells(16)[0].load(std::sync::atomic::Ordering::Acquire), 0);
//! # Ok(())
//! # }
//! ```
//!
//! - [`Segment`] is the file of a segment: the file is mapped, and its config page is checked;
//! - [`LocalPages`] are the pages that a segment has and a device does not: the host's page, and the bells
//!   with which a program rings the host; a [`Bell`] is one client's bell;
//! - [`LockFile`] says which process has which client, in a segment or a device;
//! - [`Mapping`] is a part of a file in memory, and [`futex`] sleeps on a word of a mapping;
//! - [`signals`] keeps a program's signals apart from this project's work in the program's process,
//!   [`bus_error`] handles memory that is gone, and [`child`] passes a command's signals on to the program
//!   that the command runs.
//!
//! This crate does not serve a segment: the threads of a host are in the crate `hypertrace-user`.
//!
//! # Features
//!
//! - `std` (default): all of the above, on Linux. Without `std` there are [`LocalPages`] and [`Bell`] alone,
//!   for a segment that is mapped already.
#![cfg_attr(not(feature = "std"), no_std)]
#![warn(missing_debug_implementations)]

#[cfg(feature = "std")]
pub mod bus_error;
#[cfg(feature = "std")]
pub mod child;
#[cfg(feature = "std")]
mod file;
#[cfg(feature = "std")]
pub mod futex;
#[cfg(feature = "std")]
mod holders;
mod local;
#[cfg(feature = "std")]
mod lock;
#[cfg(feature = "std")]
mod mapping;
#[cfg(feature = "std")]
pub mod signals;
#[cfg(feature = "std")]
mod token;

#[cfg(feature = "std")]
pub use file::{Segment, SegmentError};
#[cfg(feature = "std")]
pub use holders::Holder;
pub use local::{Bell, LocalPages};
#[cfg(feature = "std")]
pub use lock::LockFile;
#[cfg(feature = "std")]
pub use mapping::Mapping;
#[cfg(feature = "std")]
pub use token::token;

// The example of README.md.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
