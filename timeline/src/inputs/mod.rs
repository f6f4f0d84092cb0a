// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Inputs of a timeline: the streams of sessions, in [`ctf`], the traces of kernels, in
//! [`kernel`], and the function traces of guests, in [`functions`].

pub(crate) mod ctf;
pub(crate) mod functions;
pub(crate) mod input;
pub(crate) mod kernel;
pub(crate) mod names;
pub mod needs;
pub(crate) mod regular;
