//! The guest library on shared memory that the test itself drains.

use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::config::{ConfigPage, HostInfo, RingMode};
use hypertrace::abi::layout::Geometry;
use hypertrace::abi::record::{Flags, id};
use hypertrace::abi::ring::{ClientMemory, Consumer, ConsumerState, Flow};
use hypertrace::{Channel, Client, Emit, LeaseInfo, OpenError, ProducerState};
use std::time::{Duration, Instant};

const GEOMETRY: Geometry = Geometry {
    clients: 2,
    legacy_args: 4,
    ring_bytes: 1 << 16,
    block_bytes: 1 << 12,
    schema_bytes: 1 << 12,
};

fn rings() -> Vec<AtomicU64> {
    (0..GEOMETRY.rings_size() / 8).map(|_| AtomicU64::new(0)).collect()
}

fn page() -> ConfigPage {
    ConfigPage::new(&GEOMETRY, &HostInfo::default())
}

fn lease<'m>(channel: Channel<'m>, index: u32, state: &'m ProducerState) -> Client<'m> {
    let info = LeaseInfo { pid: 1, tid: 2, name: "test" };
    Client::lease(channel, index, state, 9, &info).unwrap()
}

#[test]
fn an_event_a_reference_point_and_a_2016_event_reach_the_ring() {
    let rings = rings();
    let channel = Channel::local(&page(), &rings).unwrap();
    let state = ProducerState::new();
    let client = lease(channel, 1, &state);

    let lba = 7u64;
    hypertrace::event!(client: client, "disk_read", lba, len = 512u32);
    hypertrace::reference_point!(client: client, "irq", line = 3u8).unwrap();
    hypertrace::hypertrace(&client, 0xab, &[1, 2, 3, 4, 5]);

    let memory = ClientMemory::of_rings(&rings, 1, &GEOMETRY, RingMode::Discard).unwrap();
    let mut host = ConsumerState::default();
    let mut consumer = Consumer::new(memory, &mut host);
    let mut seen = Vec::new();
    consumer.pull(&mut [], |_, record| {
        let mut words = vec![0; record.payload.len()];
        let header = record.header;
        record.payload.copy_to(&mut words);
        seen.push((header.id, Flags::from_bits_retain(header.flags), words));
        Flow::Taken
    });
    assert_eq!(seen[0].0, id::LEASE);
    assert_eq!(seen[1].2, [7, 512]);
    assert_eq!((seen[2].1, &seen[2].2[..]), (Flags::REFERENCE_POINT, &[3][..]));
    assert_eq!(seen[3].2, [1, 4, 0xab, 1, 2, 3]);
}

/// If the host did not declare that it cannot write, each commit would wait for a second.
#[test]
fn a_commit_does_not_wait_for_a_host_that_cannot_write() {
    let rings = rings();
    let channel = Channel::local(&page(), &rings).unwrap();
    let state = ProducerState::new();
    let client = lease(channel, 0, &state);
    let memory = ClientMemory::of_rings(&rings, 0, &GEOMETRY, RingMode::Discard).unwrap();
    let mut host = ConsumerState::default();
    Consumer::new(memory, &mut host).set_write_failed(true);

    let began = Instant::now();
    let commits = (0..20_000u64).map(|i| hypertrace::commit!(client: client, "done", i));
    let failed = commits.filter(|emit| *emit == Emit::Full).count();

    assert!(failed > 10_000, "the ring is full soon: {failed}");
    assert!(began.elapsed() < Duration::from_secs(1000), "{:?}", began.elapsed());
    client.poll();
    let lost = Consumer::new(memory, &mut host).losses();
    assert_eq!(lost.full, failed as u64);
}

#[test]
fn errors_of_a_channel_name_the_defect() {
    let rings = rings();
    let mut wrong = page();
    wrong.magic = 0x1234;
    let error = Channel::local(&wrong, &rings).unwrap_err();
    assert!(error.to_string().contains("magic at 0x28 is 0x1234"), "{error}");
    assert!(matches!(Channel::local(&page(), &rings[..100]), Err(OpenError::Short)));
    let channel = Channel::local(&page(), &rings).unwrap();
    let state = ProducerState::new();
    let info = LeaseInfo { pid: 1, tid: 2, name: "test" };
    assert!(matches!(Client::lease(channel, 2, &state, 9, &info), Err(OpenError::Client(2, 2))));
}
