// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events that a host which has ended has left in a ring.

use super::{BLOCK_HEADER_WORDS, ClientMemory};
use crate::atomic::{Ordering, Ordering::Relaxed};
use crate::config::RingMode;
use crate::layout::{guest_page, host_page};
use crate::record::{HEADER_WORDS, Header, id};

impl ClientMemory<'_> {
    /// Returns the number of events that are in the ring and that the host has not taken. A hint: both
    /// positions, and all words of the ring, may be anything. 0 in a ring that overwrites.
    pub fn untaken(&self) -> u64 {
        // ORDERING: pairs with the Release in `Producer::publish`.
        let head = self.guest[guest_page::HEAD].load(Ordering::Acquire);
        let tail = self.host[host_page::TAIL].load(Relaxed);
        let used = head.checked_sub(tail).filter(|used| *used <= self.capacity());
        if used.is_none() || self.mode() == RingMode::Overwrite {
            return 0;
        }
        let (mut events, mut start) = (0, self.block_start(tail));
        // Bound: the ring's blocks.
        while start < head {
            let end = start.saturating_add(self.block_words()).min(head);
            events += self.events(tail.max(start.saturating_add(BLOCK_HEADER_WORDS)), end);
            let Some(next) = start.checked_add(self.block_words()) else { break };
            start = next;
        }
        events
    }

    /// Returns the number of events between two positions of one block.
    fn events(&self, mut at: u64, end: u64) -> u64 {
        let mut events = 0;
        // Bound: each turn makes the rest of the block shorter.
        while end.checked_sub(at).is_some_and(|rest| rest >= HEADER_WORDS as u64) {
            let load = |at| self.word(at).load(Relaxed);
            let header = Header::from_words(load(at), load(at + 1));
            if header.id == id::PAD {
                break;
            }
            events += u64::from(header.id != id::LEASE);
            at = at.saturating_add(HEADER_WORDS as u64 + u64::from(header.words));
        }
        events
    }
}

#[cfg(all(test, not(hypertrace_loom)))]
mod tests {
    use super::*;
    use crate::atomic::AtomicU64;
    use crate::layout::Geometry;
    use crate::record::{ClockKind, Flags};
    use crate::ring::{
        Consumer, ConsumerState, Emit, Flow, Lease, LeaseInfo, Producer, ProducerState,
    };

    const GEOMETRY: Geometry = Geometry {
        clients: 1,
        legacy_args: 4,
        ring_bytes: 1 << 12,
        block_bytes: 1 << 8,
        schema_bytes: 1 << 12,
    };

    fn area() -> Vec<AtomicU64> {
        (0..GEOMETRY.client_stride() / 8).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn events_that_no_consumer_took_are_counted_without_leases_and_pads() {
        let area = area();
        let memory = ClientMemory::new(&area, &GEOMETRY, RingMode::Discard).unwrap();
        let state = ProducerState::new();
        let info = LeaseInfo { pid: 1, tid: 1, clock: ClockKind::Tsc, name: "t" };
        let producer = Producer::lease(memory, &state, Lease::new(9, 1, &info), false);
        let mut consumed = ConsumerState::default();
        let emit = |times: u64| -> u64 {
            let emitted =
                (0..times).map(|_| producer.emit_words(2, 77, Flags::empty(), &[1, 2], &[3]));
            emitted.filter(|emitted| *emitted == Emit::Recorded).count() as u64
        };
        assert_eq!(memory.untaken(), 0);

        // Around the ring several times, with a part of a block left each time.
        for round in 1..50 {
            let recorded = emit(round % 23);
            assert_eq!(memory.untaken(), recorded, "{round}");
            let mut consumer = Consumer::new(memory, &mut consumed);
            while consumer.pull(&mut [], |_, _| Flow::Taken).more {}
            consumer.commit();
            assert_eq!(memory.untaken(), 0, "{round}");
        }
    }

    #[test]
    fn positions_and_words_that_cannot_be_are_survived() {
        let area = area();
        let memory = ClientMemory::new(&area, &GEOMETRY, RingMode::Discard).unwrap();
        let capacity = memory.capacity();
        for word in [0, u64::MAX, 0x0001_0000_0000_0001] {
            memory.ring.iter().for_each(|at| at.store(word, Relaxed));
            for tail in [0, 1, 31, u64::MAX - capacity, u64::MAX - 1, u64::MAX] {
                for used in [0, 1, capacity - 1, capacity, capacity + 1, u64::MAX] {
                    memory.host[host_page::TAIL].store(tail, Relaxed);
                    memory.guest[guest_page::HEAD].store(tail.wrapping_add(used), Relaxed);
                    assert!(memory.untaken() <= capacity / 2);
                }
            }
        }
    }
}
