// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Inputs of a timeline: today the streams of sessions, in [`ctf`].

pub(crate) mod ctf;
pub(crate) mod input;
pub(crate) mod names;
