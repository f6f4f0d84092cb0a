//! A guest that writes anything anywhere at any time, beside a client that keeps the rules: everybody
//! reads the session to its end, and the other client's events are complete.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hypertrace::{Client, LeaseInfo, ProducerState};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{guest_page, host_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::schema::id_of;
use hypertrace_device::{Geometry, RingMode};
use hypertrace_tests::babeltrace2;
use hypertrace_tests::forger::{Forger, collision};
use hypertrace_tests::host::{Host, Recorded};
use hypertrace_timeline::Value;
use hypertrace_trace::session_json::StreamJson;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRng, TestRunner};

const CASES: u32 = if cfg!(debug_assertions) { 48 } else { 200 };
/// Words of a page.
const PAGE: usize = 512;
const HONEST: u32 = 0;
const HOSTILE: u32 = 1;

#[derive(Clone, Copy, Debug)]
enum Number {
    Plain(u64),
    /// Ticks from now.
    Now(i64),
}

impl Number {
    fn value(self) -> u64 {
        match self {
            Number::Plain(value) => value,
            Number::Now(ticks_on) => ticks().wrapping_add_signed(ticks_on),
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Poke(usize, Number),
    Mask(usize, u64),
    Jump(Number),
    Record {
        text: usize,
        time: Number,
        told: Option<u16>,
        flags: u16,
        payload: Vec<Number>,
    },
    Schema {
        text: usize,
        id: Option<u32>,
        flip: Option<(usize, u8)>,
    },
    Emit {
        text: usize,
        seq: u32,
        time: Number,
        told: Option<u16>,
        payload: Vec<Number>,
    },
    Register {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Code that keeps the rules takes the client over, as it finds it.
    Lease {
        token: u64,
    },
    Drain,
}

fn number() -> impl Strategy<Value = Number> {
    let odd = prop::sample::select(vec![0, 1, 2, 7, 100, 4096, 1 << 32, 1 << 63, u64::MAX]);
    prop_oneof![
        odd.prop_map(Number::Plain),
        any::<u64>().prop_map(Number::Plain),
        (0..100u64).prop_map(Number::Plain),
        (-1_000_000..1_000i64).prop_map(Number::Now),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let counters = [guest_page::HEAD, guest_page::LOST_FULL, guest_page::LOST_BUSY]
        .into_iter()
        .chain([guest_page::SCHEMA_LEN, guest_page::SLOT, guest_page::SLOT + 3])
        .chain([host_page::TAIL, host_page::SCHEMA_SEEN, host_page::LEASE].map(|w| PAGE + w));
    let counter = prop::sample::select(counters.collect::<Vec<_>>());
    let payload = || prop::collection::vec(number(), 0..6);
    let told = || prop::option::weighted(0.1, any::<u16>());
    let text = || 0..TEXTS + 2;
    let time = || prop_oneof![6 => (-50..0i64).prop_map(Number::Now), 1 => number()];
    prop_oneof![
        2 => (counter, number()).prop_map(|(word, value)| Act::Poke(word, value)),
        2 => (any::<usize>(), number()).prop_map(|(word, value)| Act::Poke(word, value)),
        1 => (any::<usize>(), any::<u64>()).prop_map(|(word, value)| Act::Mask(word, value)),
        1 => number().prop_map(Act::Jump),
        30 => (text(), time(), told(), 0..5u16, payload()).prop_map(
            |(text, time, told, flags, payload)| Act::Record { text, time, told, flags, payload }
        ),
        4 => (text(), prop::option::weighted(0.2, any::<u32>()),
              prop::option::weighted(0.2, any::<(usize, u8)>()))
            .prop_map(|(text, id, flip)| Act::Schema { text, id, flip }),
        4 => (text(), any::<u32>(), time(), told(), payload()).prop_map(
            |(text, seq, time, told, payload)| Act::Emit { text, seq, time, told, payload }
        ),
        1 => (0..0x30u64, prop::collection::vec(any::<u8>(), 0..9))
            .prop_map(|(offset, bytes)| Act::Register { offset, bytes }),
        1 => any::<u64>().prop_map(|token| Act::Lease { token }),
        3 => Just(Act::Drain),
    ]
}

const TEXTS: usize = 6;

/// Texts that are told: good ones, two with one hash, one that is none, and a reserved one.
fn texts() -> Vec<String> {
    let (a, b) = collision();
    let good = ["e(x:u64)", "a(a:[u64],s:str,b:u8)", "tick()", "event(struct:str,id:u64)"];
    let bad = ["e(x:u64", "lease(token:x64,pid:u32,tid:u32,clock:u32,name:str)"];
    good.into_iter().map(str::to_owned).chain([a, b]).chain(bad.map(str::to_owned)).collect()
}

fn geometry() -> Geometry {
    Geometry { clients: 2, ring_bytes: 1 << 16, block_bytes: 1 << 12, ..Geometry::default() }
}

fn lease<'h>(
    host: &'h Host,
    index: u32,
    state: &'h ProducerState,
    token: u64,
    name: &'h str,
) -> Client<'h> {
    let info = LeaseInfo { pid: 1, tid: 2, clock: ClockKind::Tsc, name };
    Client::lease(host.channel(), index, state, token, &info).unwrap()
}

fn perform(act: &Act, host: &Host, forger: &mut Forger<'_>, texts: &[String]) {
    let values = |numbers: &[Number]| numbers.iter().map(|n| n.value()).collect::<Vec<u64>>();
    match act {
        Act::Poke(word, value) => forger.poke(*word, value.value()),
        Act::Mask(word, value) => forger.mask(*word, *value),
        Act::Jump(by) => {
            forger.head = forger.head.wrapping_add(by.value());
            forger.publish();
        }
        Act::Record { text, time, told, flags, payload } => {
            if forger.at_block() {
                forger.block(payload.first().map_or(0, |n| n.value()), u64::from(*flags));
            }
            let payload = values(payload);
            let told = told.unwrap_or(payload.len() as u16);
            forger.record(time.value(), id_of(&texts[*text]), told, *flags, &payload);
            forger.publish();
        }
        Act::Schema { text, id, flip } => {
            let mut bytes = texts[*text].clone().into_bytes();
            if let Some((at, byte)) = flip {
                let at = at % bytes.len();
                bytes[at] = *byte;
            }
            forger.schema(id.unwrap_or(id_of(&texts[*text])), &bytes);
        }
        Act::Emit { text, seq, time, told, payload } => {
            let payload = values(payload);
            let told = told.unwrap_or(payload.len() as u16);
            forger.emit(*seq, id_of(&texts[*text]), time.value(), told, &payload);
        }
        Act::Register { offset, bytes } => forger.register(*offset, bytes),
        Act::Lease { token } => {
            let state = ProducerState::new();
            let client = lease(host, HOSTILE, &state, *token | 1, "\x1b[2Jguest\n");
            for n in 0..20u64 {
                let (site, fields) = event_type!("ruled", n, text = "\x1b]0;");
                client.emit(site, fields);
            }
            client.release();
        }
        Act::Drain => {
            host.chip.drain_pass(4);
        }
    }
}

/// Everybody reads it to its end, and the honest client is as if it were alone.
fn check(recorded: &Recorded, emitted: u64, is_complete: bool) {
    let events = recorded.events();
    assert_eq!(events.len() as u64, recorded.summary.records);
    let honest = events.iter().filter(|event| &*event.name == "honest");
    let numbers: Vec<u64> = honest
        .map(|event| match event.fields[0].1 {
            Value::Unsigned(number) if event.client == Some(HONEST) => number,
            _ => panic!("{event:?}"),
        })
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order, none twice");
    let of_client = |client: u32| {
        let own = |s: &&StreamJson| (&*s.domain, s.client) == ("guest", client);
        recorded.summary.streams.iter().find(own).unwrap()
    };
    let StreamJson { events, lost_full, lost_busy, lost_overwritten, faults, .. } =
        of_client(HONEST);
    assert_eq!((numbers.len() as u64, faults.len()), (*events, 0));
    // Of a flight recorder that was not drained in time, the lease may be gone, too.
    let lost = lost_full + lost_busy + lost_overwritten;
    assert!(events + lost == emitted || lost > 1 && events + lost == emitted + 1);
    assert!(!is_complete || *events == emitted);
    assert_eq!(of_client(HOSTILE).faults, recorded.summary.faults);
    if let Some(read) = babeltrace2::read(&recorded.ctf()) {
        assert_eq!(read.complete(), recorded.summary.records);
    }
}

fn attack(acts: &[Act], mode: RingMode, texts: &[String]) {
    let host = Host::with_mode(geometry(), mode);
    let chip = host.chip.clone();
    let mut forger = Forger::new(&chip, HOSTILE);
    let state = ProducerState::new();
    let mut emitted = 0u64;
    {
        let honest = lease(&host, HONEST, &state, 77, "honest");
        for act in acts {
            perform(act, &host, &mut forger, texts);
            let (site, fields) = event_type!("honest", number = emitted);
            honest.emit(site, fields);
            emitted += 1;
        }
        honest.release();
    }
    while chip.drain_pass(8) {}
    check(&host.finish(), emitted, true);
}

#[test]
fn one_thing_after_the_other() {
    let texts = texts();
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let modes = prop::sample::select(vec![RingMode::Discard, RingMode::Overwrite]);
    let acts = prop::collection::vec(act(), 1..300);
    TestRunner::new(config)
        .run(&(acts, modes), |(acts, mode)| {
            attack(&acts, mode, &texts);
            Ok(())
        })
        .unwrap();
}

/// Two vCPUs on one client, the drain loop and an honest client, all at once.
fn attack_from_two_threads(mode: RingMode) {
    let texts = texts();
    let host = Host::with_mode(geometry(), mode);
    let drain = host.drain();
    let (begin, done) = (Instant::now(), AtomicBool::new(false));
    let mut number = 0u64;
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (host, done, texts) = (&host, &done, &texts);
            scope.spawn(move || {
                let config = Config { failure_persistence: None, ..Config::default() };
                let rng = TestRng::from_seed(config.rng_algorithm, &[thread + 1; 32]);
                let mut runner = TestRunner::new_with_rng(config, rng);
                let mut forger = Forger::new(&host.chip, HOSTILE);
                while !done.load(Ordering::Relaxed) {
                    let act = act().new_tree(&mut runner).unwrap().current();
                    // One thread drains.
                    if !matches!(act, Act::Drain) {
                        perform(&act, host, &mut forger, texts);
                    }
                }
            });
        }
        let state = ProducerState::new();
        let honest = lease(&host, HONEST, &state, 77, "honest");
        while begin.elapsed() < Duration::from_secs(1) {
            assert!(honest.wait_for_room(8));
            let (site, fields) = event_type!("honest", number);
            honest.emit(site, fields);
            number += 1;
            if number.is_multiple_of(16) {
                std::thread::yield_now();
            }
        }
        honest.release();
        done.store(true, Ordering::Relaxed);
    });
    drain.finish();
    let recorded = host.finish();
    println!("{mode:?}: {} records, {:?}", recorded.summary.records, recorded.summary.faults);
    check(&recorded, number, mode == RingMode::Discard);
}

#[test]
fn all_at_once() {
    attack_from_two_threads(RingMode::Discard);
}

#[test]
fn all_at_once_into_a_flight_recorder() {
    attack_from_two_threads(RingMode::Overwrite);
}
