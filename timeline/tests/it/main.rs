// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, with a module for each subject.

mod ahead;
mod around;
mod boot;
mod clocks;
mod corrections;
mod damage;
mod frozen;
mod functions;
mod guest_mode;
mod guest_tscs;
mod kernel;
mod kernel_limits;
mod kernel_options;
mod made_regions;
mod needs;
mod odd_files;
mod order;
mod recording;
mod recovered;
mod regions;
mod regions_children;
mod regions_chosen;
mod regions_ends;
mod regions_exits;
mod regions_inner;
mod regions_lies;
mod regions_missing;
mod regions_pairs;
mod regions_spans;
mod regions_two_kernels;
mod regions_whom;
mod session;
mod written;
