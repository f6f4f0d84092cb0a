//! The client that keeps the rules, and what it is owed.

use crate::HONEST;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{PAGE, host_page, register};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{ClientMemory, Emit, Lease, LeaseInfo, Producer, ProducerState};
use hypertrace_abi::sink::{EventSink, Status};
use hypertrace_device::{Chip, Region, RingMode};

/// What arrived of the honest client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Numbers of its ring events, in order.
    pub events: Vec<u64>,
    /// Numbers of its reference points, in order.
    pub points: Vec<u64>,
    /// Counted as lost by its producer.
    pub full: u64,
    /// Written, but overwritten before they were taken; may count the lease.
    pub overwritten: u64,
}

/// The client and what it did.
pub struct Honest<'g> {
    producer: Producer<'g>,
    mode: RingMode,
    next: u64,
    emitted: Kept,
}

impl<'g> Honest<'g> {
    pub fn new(memory: ClientMemory<'g>, state: &'g ProducerState) -> Self {
        let info = LeaseInfo { pid: 7, tid: 8, clock: ClockKind::Tsc, name: "honest" };
        let mode = memory.mode();
        let producer = Producer::lease(memory, state, Lease::new(0xbeef, ticks(), &info), false);
        Honest { producer, mode, next: 0, emitted: Kept::default() }
    }

    pub fn emit(&mut self) {
        let (site, fields) = event_type!("honest", n = self.next);
        match self.producer.emit(site, ticks(), fields) {
            Emit::Recorded => self.emitted.events.push(self.next),
            Emit::Full => self.emitted.full += 1,
            other => panic!("an emit that nothing interrupts was {other:?}"),
        }
        self.next += 1;
    }

    pub fn point<S: EventSink>(&mut self, chip: &Chip<S>) {
        let (site, fields) = event_type!("honest_point", n = self.next);
        let seq = self.next as u32;
        let emit =
            chip.geometry().control_pages_offset() + u64::from(HONEST) * PAGE + register::EMIT;
        let host = self.producer.memory().host;
        let reply = self.producer.slot(site, ticks, seq, 1, fields, |_| {
            chip.write(Region::Control, emit, &u64::from(seq).to_le_bytes());
            host[host_page::REPLY].load(std::sync::atomic::Ordering::Acquire)
        });
        let reply = reply.expect("a slot for it");
        assert_eq!(reply as u32, seq, "the reply is to another");
        // A host ring may be full; then the host says so.
        if reply >> 32 == Status::Recorded as u64 {
            self.emitted.points.push(self.next);
        } else {
            assert_eq!(reply >> 32, Status::Failed as u64);
        }
        self.next += 1;
    }

    /// Tells what it lost.
    pub fn end(&self) {
        self.producer.refresh(ticks());
    }

    /// Whether what arrived is what it emitted.
    pub fn check(&self, kept: &Kept) {
        assert_eq!(kept.points, self.emitted.points);
        assert_eq!(kept.full, self.emitted.full);
        match self.mode {
            RingMode::Discard => assert_eq!(*kept, self.emitted),
            RingMode::Overwrite => {
                assert_eq!(self.emitted.full, 0);
                assert!(kept.events.is_sorted_by(|a, b| a < b));
                assert!(kept.events.iter().all(|n| self.emitted.events.binary_search(n).is_ok()));
                let sum = kept.events.len() as u64 + kept.overwritten;
                let emitted = self.emitted.events.len() as u64;
                assert!(sum == emitted || sum == emitted + 1, "{sum} of {emitted}");
            }
        }
    }
}
