// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, one module per subject.

mod budgets;
mod common;
mod exact;
mod format;
mod full_disk;
mod guest_tsc;
mod hostile;
mod kill;
mod memory;
mod monitor;
mod place;
mod quiet;
mod receive;
mod recover;
mod reentry;
mod refusal;
mod session;
#[cfg(feature = "events")]
mod simple;
mod snapshots;
mod texts;
mod without_events;
