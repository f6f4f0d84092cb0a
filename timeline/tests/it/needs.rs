// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests that a reader of a part of a timeline gets the same entries as a reader of the whole timeline. For
//! both readers, each event has the same time, bound and source, and each loss has the same place.

use hypertrace_test_support::kept::{self, Entry};
use hypertrace_test_support::{machine, made};
use hypertrace_timeline::{ClockMaps, EntryRef, Error, Needs, Recording, Session};
use machine::Random;
use made::*;

/// Number of ticks in an hour. The guest's second clock begins at this time.
const LATER: u64 = 3_600_000_000_000;

/// Makes a session of two clients. Each client has points, changes of its name, and losses. At some time,
/// each client changes to another clock, which is behind the first clock.
fn session(random: &mut Random) -> Made {
    let host = clock(0, "host", 0, GHZ, 1_000_000, START_NS);
    let first = clock(1, "guest", 0, GHZ, GUEST_BASE, START_NS);
    let second = clock(2, "guest", 1, GHZ, LATER, START_NS);
    let mut made = Made::with_json(&json(&format!("[{host},{first},{second}]"), EVENTS, "[]"));
    for client in 0..2 {
        let mut points = Packet::host(client).lease(0, 9, "vcpu");
        let mut seq = 0;
        for (epoch, stream_id, base) in [(0, 1, GUEST_BASE), (1, 2, LATER)] {
            let mut file = vec![Packet::new(1, client, stream_id)];
            file[0].set32(92, epoch);
            let mut now = u64::from(epoch) * 30_000_000;
            let (mut token, mut lost) = (u64::from(epoch) * 100, 0);
            for _ in 0..8 {
                let last = &file[file.len() - 1];
                let mut packet = Packet::new(1, client, stream_id).after(last).with64(80, token);
                packet.set32(92, epoch);
                for n in 0..random.in_range(1, 40) as u64 {
                    now += random.in_range(1, 200_000) as u64;
                    match random.in_range(0, 12) {
                        0 if n == 0 => {
                            token += 1;
                            packet = packet.lease(now, token, &format!("holder {token}"));
                        }
                        // The same holder has another name.
                        1 => packet = packet.lease(now, token, &format!("at {now}")),
                        // A guest can write a lease that names a holder other than the packet's holder.
                        4 => {
                            let other = packet.lease(now, token + 50, "another");
                            packet = other.with64(80, token);
                        }
                        2 => packet = packet.event_str(now, OPENED, &[], b"a name"),
                        3 => {
                            seq += 1;
                            let late = random.in_range(1, 60_000) as u64;
                            points = points.point(now + late, client, seq, base + now, now);
                            now += late;
                        }
                        _ => packet = packet.event(now, DISK_READ, &[now, n]),
                    }
                }
                lost += if random.one_in(3) { random.in_range(1, 5) as u64 } else { 0 };
                packet.set64(56, lost);
                if !packet.events.is_empty() {
                    file.push(packet);
                }
            }
            made = made.stream(&format!("guest-{client}-{epoch}"), &file);
        }
        made = made.stream(&format!("host-{client}"), &[Packet::host(client), points]);
    }
    made
}

/// Returns the entries of a timeline that have the name `named` and a Unix time of `from` or later. The
/// function also returns the number of all entries.
fn entries(
    recording: &Recording,
    needs: &Needs,
    (from, named): (i64, Option<&str>),
) -> (Vec<Entry>, usize) {
    let (all, _) = kept::entries(recording, needs).unwrap();
    let number = all.len();
    let is_needed = |entry: &Entry| match entry {
        Entry::Event(event) => {
            event.ts_ns >= from && named.is_none_or(|named| &*event.name == named)
        }
        Entry::Lost(lost) => lost.ts_ns.is_none_or(|time| time >= from),
    };
    (all.into_iter().filter(is_needed).collect(), number)
}

#[test]
fn a_part_of_a_timeline_is_the_same_whatever_else_is_needed() {
    let mut random = Random(7);
    let (mut least, mut late) = (usize::MAX, 0);
    for _ in 0..60 {
        let made = session(&mut random);
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let recording = Recording::of([(session, maps)], []);
        let of_all = |wanted| entries(&recording, Needs::ALL, wanted);
        let (all, number) = of_all((i64::MIN, None));
        let times = all.iter().filter_map(|entry| match entry {
            Entry::Event(event) => Some(event.ts_ns),
            Entry::Lost(lost) => lost.ts_ns,
        });
        let times = Vec::from_iter(times);
        late += times.windows(2).filter(|pair| pair[0] == pair[1]).count();
        for part in [0, 1, 2, 3, 7, 8] {
            let from = times[(times.len() - 1) * part / 8];
            for named in [None, Some("disk_read"), Some("opened"), Some("checkpoint")] {
                let needs = Needs::default().since(Some(from));
                let needs = match named {
                    None => needs,
                    Some(named) => needs.named(&recording.sessions, |name| name == named),
                };

                let (found, read) = entries(&recording, &needs, (from, named));

                let expected = of_all((from, named)).0;
                let differs = found.iter().zip(&expected).find(|(found, all)| found != all);
                assert!(
                    differs.is_none() && found.len() == expected.len(),
                    "{from} {named:?}: {differs:?}"
                );
                assert!(read <= number);
                if part == 7 {
                    least = least.min(read * 100 / number);
                }
            }
        }
    }
    // The reader still returns the first events and the leases of packets that it skips, so some entries
    // remain.
    assert!(least < 30 && late > 0, "{least} % {late}");
}

#[test]
fn damage_among_what_nobody_needs_comes_after_the_events_before_it() {
    // The damage is in the length of the text of the packet's tenth event, or in the event's number of words.
    let tenth = 128 * 2 + 9 * 24;
    for (at, bytes) in [(tenth + 16, [255; 4]), (tenth + 12, [4, 0, 0, 0])] {
        let add = |packet: Packet, n: u64| {
            packet.event_str(n * 1_000_000, OPENED, &[], &(n as u32).to_le_bytes())
        };
        let opened = (1..20).fold(Packet::guest(0), add);
        let point = |packet: Packet, n: u64| {
            packet.point(n * 500_000, 0, n as u32, GUEST_BASE + n * 500_000 - 1_000, n)
        };
        let points = (1..20).fold(Packet::host(0), point);
        let made = Made::new().stream("guest-0", &[Packet::guest(0), opened]);
        let made = made.stream("host-0", &[Packet::host(0), points]);
        let mut file = std::fs::read(made.file("guest-0")).unwrap();
        file[at..at + 4].copy_from_slice(&bytes);
        std::fs::write(made.file("guest-0"), file).unwrap();
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let recording = Recording::of([(session, maps)], []);
        let needs = Needs::default().named(&recording.sessions, |name| name == "checkpoint");
        let mut points = 0;

        let read = recording.read(&needs, &mut |entry: &EntryRef<'_>| {
            match entry {
                EntryRef::Event(event) => points += usize::from(&**event.name == "checkpoint"),
                EntryRef::Lost(lost) => panic!("{lost:?}"),
            }
            Ok::<_, Error>(true)
        });

        let damage = read.unwrap_err().to_string();

        assert!((17..20).contains(&points), "{points}");
        assert!(damage.contains("guest-0: damaged at byte 4"), "{damage}");
    }
}
