// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Events of the [interface of 2016](hypertrace_abi::legacy).

use crate::chip::Chip;
use hypertrace_abi::layout::MAX_LEGACY_ARGS;
use hypertrace_abi::legacy;
use hypertrace_abi::record::id;
use hypertrace_abi::sink::ReferencePoint;
use hypertrace_abi::slot;

impl Chip {
    /// Serves an event. `value` is the first argument, and the client's slot in BAR 1 contains the other
    /// arguments.
    pub(crate) fn emit_legacy(&self, now: u64, client: u32, value: u64) {
        let Some(slot) = legacy::slot(self.memory.data(), client, &self.geometry) else {
            return;
        };
        // Fields of the reserved schema: client, count, arguments.
        let mut words = [0; 2 + MAX_LEGACY_ARGS as usize];
        words[0] = client.into();
        words[1] = 1 + slot.len() as u64;
        words[2] = value;
        slot::copy(&mut words[3..], slot);
        self.record(&ReferencePoint {
            client,
            seq: 0,
            id: id::HYPERTRACE,
            name_hash: 0,
            cpu: 0,
            guest_time: 0,
            host_time: now,
            words: &words[..3 + slot.len()],
        });
    }
}
