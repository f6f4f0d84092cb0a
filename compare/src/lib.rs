// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Whether one build is faster than another, and in which part.
//!
//! ```text
//! stats     intervals, p values and the smallest difference, of two sets of runs
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

pub mod stats;
