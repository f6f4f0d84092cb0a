// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regions of interest: the time between two events of a client, and where it went.

pub mod parts;
