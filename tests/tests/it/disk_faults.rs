//! A disk with errors, without space, with interrupted and torn writes: every event is recorded or counted
//! as lost, all readers read the whole session, and failures are reported. `HYPERTRACE_TEST_FAULTS` is the
//! number of runs, each with other faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use hypertrace::{Emit, ProducerState};
use hypertrace_abi::event_type;
use hypertrace_device::{Geometry, RingMode};
use hypertrace_tests::host::Host;
use hypertrace_tests::inject::Faults;
use hypertrace_tests::random::Random;
use hypertrace_tests::{babeltrace2, host};
use hypertrace_timeline::SessionStat;
use hypertrace_trace::SessionConfig;

const CLIENTS: u32 = 3;
const EVENTS: u64 = 20_000;
/// Time that a pass spends on one client.
const BUDGET: Duration = Duration::from_micros(100);
/// One call in 4, 20 or 100 calls fails, so some runs have many faults and other runs have few faults.
const ONE_OF: [u64; 3] = [4, 20, 100];

fn runs() -> u64 {
    std::env::var("HYPERTRACE_TEST_FAULTS").map_or(5, |runs| runs.parse().unwrap())
}

/// Counts an event as recorded or dropped.
type Emitted = (u64, u64);

fn count(emitted: &mut Emitted, emit: Emit) {
    match emit {
        Emit::Recorded => emitted.0 += 1,
        Emit::Full => emitted.1 += 1,
        other => panic!("{other:?}"),
    }
}

fn guest(host: &Host, index: u32, mut random: Random) -> Emitted {
    let state = ProducerState::new();
    let client = host.lease(index, &state, "guest");
    let mut emitted = (0, 0);
    for n in 0..EVENTS {
        if random.below(100) == 0 {
            thread::sleep(Duration::from_micros(random.below(1_000)));
        }
        // The events of the second half have a new name, so that the session writes its descriptions again.
        let emit = if n < EVENTS / 2 {
            let (site, fields) = event_type!("early", n, text = "some text");
            client.emit(site, fields)
        } else {
            let (site, fields) = event_type!("late", n);
            client.emit(site, fields)
        };
        count(&mut emitted, emit);
    }
    client.release();
    emitted
}

fn vmm(host: &Host, mut random: Random) -> Emitted {
    assert!(host.session.attach("vmm"));
    let mut emitted = (0, 0);
    for n in 0..EVENTS {
        if random.below(100) == 0 {
            thread::sleep(Duration::from_micros(random.below(1_000)));
        }
        count(&mut emitted, host.session.emit(event_type!("vmm", n)));
    }
    emitted
}

/// Moment at which the disk works again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    BeforeTheLastPass,
    BeforeTheEnd,
    AfterTheEndFailed,
}

/// Records a session on a disk where one call in `one_of` fails.
fn record(faults: &Faults, mut random: Random, one_of: u64, whole: Whole) {
    let dir = tempfile::tempdir().unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let mut config = SessionConfig::new(dir.path());
    (config.file_bytes, config.open_files) = (1 << 18, 2);
    let tell = Arc::clone(&told);
    config.on_write_failed = Some(Box::new(move |_| {
        tell.fetch_add(1, Ordering::Relaxed);
    }));
    let geometry = Geometry {
        clients: CLIENTS,
        ring_bytes: 64 << 10,
        block_bytes: 4 << 10,
        ..Geometry::default()
    };
    let host = Host::of(dir, config, geometry, RingMode::Discard);
    faults.begin(one_of);
    let done = AtomicBool::new(false);
    let (guests, vmm) = thread::scope(|scope| {
        let guests: Vec<_> = (0..CLIENTS)
            .map(|index| (index, random.fork()))
            .map(|(index, random)| {
                scope.spawn({
                    let host = &host;
                    move || guest(host, index, random)
                })
            })
            .collect();
        let random = random.fork();
        let vmm = scope.spawn(|| vmm(&host, random));
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                host.chip.drain_pass(BUDGET);
                thread::sleep(Duration::from_micros(200));
            }
        });
        let guests: Vec<Emitted> = guests.into_iter().map(|guest| guest.join().unwrap()).collect();
        let vmm = vmm.join().unwrap();
        done.store(true, Ordering::Release);
        (guests, vmm)
    });
    let errors = faults.errors();
    if whole == Whole::BeforeTheLastPass {
        faults.end();
    }
    while host.chip.drain_pass(BUDGET) {}
    if whole == Whole::BeforeTheEnd {
        faults.end();
    }
    host.chip.discard_unread();
    if whole == Whole::AfterTheEndFailed {
        // If the session cannot be ended, the test repeats the attempt until an attempt succeeds or the
        // faults have ended.
        while host.session.clone().finish().is_err() && faults.is_on() {
            if random.below(3) == 0 {
                faults.end();
            }
        }
        faults.end();
    }
    let recorded = host.finish();

    let summary = &recorded.summary;
    let (mut emitted, mut dropped) = vmm;
    for (client, guest) in (0..).zip(&guests) {
        let stream = recorded.client(client);
        // Events that the session had not written when the session ended count as overwritten.
        assert_eq!(stream.events + stream.lost_overwritten, guest.0, "{stream:?} {guest:?}");
        assert_eq!(stream.lost_full, guest.1, "{stream:?}");
        emitted += guest.0;
        dropped += guest.1;
    }
    let events = summary.ring_events + summary.host_events;
    // A lease record does not count as an event, whether the session has recorded the lease or not.
    assert_eq!(events + summary.lost, emitted + dropped, "{summary:?}");
    assert!(summary.leases <= u64::from(CLIENTS) + 1, "{summary:?}");
    if errors > 0 {
        assert!(told.load(Ordering::Relaxed) > 0 && summary.write_failures > 0, "{summary:?}");
    }
    let stat = SessionStat::of(&recorded.open()).unwrap();
    assert_eq!((stat.total.records, stat.total.lost), (summary.records, summary.lost));
    assert_eq!(host::events(recorded.dir()).len() as u64, summary.records);
    if let Some(read) = babeltrace2::read(&recorded.ctf()) {
        assert_eq!(read.complete(), summary.records);
    }
    println!(
        "1 of {one_of}, {whole:?}: {} records, {} lost, {} failures",
        summary.records, summary.lost, summary.write_failures
    );
}

#[test]
fn all_events_are_recorded_or_counted_whatever_the_disk_does() {
    let mut random = Random::seeded();
    let (mut errors, mut partial) = (0, 0);
    for run in 0..runs() {
        let faults = Faults::new(random.fork());
        let one_of = ONE_OF[(run % 3) as usize];
        let whole =
            random.pick(&[Whole::BeforeTheLastPass, Whole::BeforeTheEnd, Whole::AfterTheEndFailed]);
        let random = random.fork();
        println!("run {run}: 1 of {one_of}, {whole:?}");
        if faults.run(|| record(&faults, random, one_of, whole)).is_none() {
            return;
        }
        errors += faults.errors();
        partial += faults.partial();
    }
    println!("{errors} errors, {partial} writes in part");
    assert!(errors > 0 && partial > 0, "both have to happen");
}
