// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Inputs of a timeline: the streams of sessions, in [`ctf`], and the traces of kernels,
//! in [`kernel`].

pub(crate) mod ctf;
pub(crate) mod input;
pub(crate) mod kernel;
pub(crate) mod names;
pub(crate) mod regular;
