// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A client's memory, with a producer and a consumer.

use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{
    ClientMemory, Consumer, ConsumerState, Emit, Flow, Lease, LeaseInfo, Producer, ProducerState,
    Pulled,
};

pub fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

pub struct Memory {
    pub guest: Vec<AtomicU64>,
    pub host: Vec<AtomicU64>,
    pub schema: Vec<AtomicU64>,
    pub ring: Vec<AtomicU64>,
    block: u64,
    pub mode: RingMode,
}

impl Memory {
    pub fn new(ring: usize, block: u64, mode: RingMode) -> Memory {
        Memory {
            guest: words(512),
            host: words(512),
            schema: words(512),
            ring: words(ring),
            block,
            mode,
        }
    }

    pub fn client(&self) -> ClientMemory<'_> {
        ClientMemory::for_test(
            &self.guest,
            &self.host,
            &self.schema,
            &self.ring,
            self.block,
            self.mode,
        )
    }

    pub fn producer<'m>(&'m self, state: &'m ProducerState, token: u64) -> Producer<'m> {
        let info = LeaseInfo { pid: 1, tid: 2, name: "test" };
        Producer::lease(self.client(), state, Lease::new(token, ClockKind::Tsc, 1, &info), false)
    }
}

pub type Seen = (u64, u32, Vec<u64>);

pub fn pull(
    memory: &Memory,
    state: &mut ConsumerState,
    most: usize,
    seen: &mut Vec<Seen>,
) -> Pulled {
    let mut consumer = Consumer::new(memory.client(), state);
    let mut stage = vec![0; consumer.stage_words()];
    let mut taken = 0;
    let pulled = consumer.pull(&mut stage, |_, record| {
        if taken == most {
            return Flow::Stop;
        }
        taken += 1;
        let mut payload = vec![0; record.payload.len()];
        record.payload.copy_to(&mut payload);
        seen.push((record.header.timestamp, record.header.id, payload));
        Flow::Taken
    });
    consumer.commit();
    pulled
}

pub fn emit(producer: &Producer<'_>, now: u64, value: u64) -> Emit {
    let (site, fields) = event_type!("value", value);
    producer.emit((site, fields), || now)
}
