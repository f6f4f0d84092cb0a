//! Marked stores of emulated guests, and their points in the relays.

use crate::common;
use common::{Guest, Segment, Taken, geometry, guests};
use hypertrace_abi::layout::Geometry;
use hypertrace_abi::layout::local::{BELLS, State};
use std::collections::BTreeSet;

const ID: u32 = 1000;
const NAME_HASH: u32 = 77;

/// Runs a test for every guest that this machine can run.
fn each(test: impl Fn(&Guest)) {
    let folder = tempfile::tempdir().unwrap();
    for guest in guests(folder.path()) {
        test(&guest);
        common::capability::used(guest.name);
    }
}

/// Asserts that the client has made these points, in order, on one vCPU.
#[track_caller]
fn check(taken: &Taken, client: u32, seqs: impl Iterator<Item = u64>) {
    let points = taken.of(client);
    let wanted: Vec<u64> = seqs.collect();
    assert_eq!(points.iter().map(|point| point.seq).collect::<Vec<_>>(), wanted);
    for point in &points {
        assert_eq!(point.id, ID);
        assert_eq!(point.words, [client.into(), point.seq]);
        assert_eq!(point.guest_time, 5000 + point.seq);
        assert_eq!(point.vcpu, points[0].vcpu);
        assert_eq!((point.relay, point.holder), (points[0].relay, points[0].holder));
    }
    assert!(points.windows(2).all(|two| two[0].time <= two[1].time));
}

#[test]
fn points_of_all_threads_arrive_once_and_in_order() {
    each(|guest| {
        // The guest makes more points than all rings of the segment can hold.
        let segment = Segment::new(8);
        let (stdout, stderr) = guest.act(&segment, &[], &["threads", "4", "1000"]);
        let taken = segment.take();
        assert_eq!(taken.points.len(), 4000, "{}", guest.name);
        assert!(stderr.contains("recorded 4000, found"), "{stderr}");
        for client in 8..12 {
            check(&taken, client, 1..=1000);
            // The lease names the thread that made the points.
            let point = taken.of(client)[0];
            let holder = &taken.holders[point.holder];
            assert_eq!(holder.name, format!("vcpu {}", point.vcpu));
            let tid = format!("client {client} tid {}\n", holder.tid);
            assert!(stdout.contains(&tid), "{stdout}{holder:?}");
        }
        let threads: BTreeSet<u64> = taken.holders.iter().map(|holder| holder.tid).collect();
        assert_eq!(threads.len(), 4);
    });
}

#[test]
fn the_guest_base_may_be_anything() {
    each(|guest| {
        for base in ["0x10000000000", "0x600000000000"] {
            // The guest's addresses begin far from QEMU's own mappings, because the addresses at which QEMU
            // loads a PIE must be free.
            let segment = Segment::new(8);
            guest.act(&segment, &["-B", base], &["threads", "2", "10"]);
            let taken = segment.take();
            check(&taken, 8, 1..=10);
            check(&taken, 9, 1..=10);
        }
    });
}

#[test]
fn a_thread_that_ends_gives_its_relay_back() {
    each(|guest| {
        let segment = Segment::new(2);
        guest.act(&segment, &[], &["in_turns", "14", "3"]);
        let taken = segment.take();
        assert_eq!(taken.points.len(), 42);
        for client in 2..16 {
            check(&taken, client, 1..=3);
        }
        assert_eq!(taken.holders.len(), 14);
    });
}

#[test]
fn a_forked_child_has_a_relay_of_its_own() {
    each(|guest| {
        let segment = Segment::new(4);
        let (stdout, _) = guest.act(&segment, &[], &["forks", "0", "3"]);
        let taken = segment.take();
        check(&taken, 4, 1..=5);
        check(&taken, 5, 1..=3);
        let (parent, child) = (taken.of(4)[0].relay, taken.of(5)[0].relay);
        assert_ne!(parent, child);
        let pid = |client| taken.holders[taken.of(client)[0].holder].pid;
        assert!(stdout.contains(&format!("child {}\n", pid(5))), "{stdout}");
        assert_ne!(pid(4), pid(5));
    });
}

#[test]
fn the_segment_may_be_mapped_anywhere_and_again() {
    each(|guest| {
        let segment = Segment::new(4);
        guest.act(&segment, &[], &["elsewhere", "0", "3"]);
        let taken = segment.take();
        for client in 4..7 {
            check(&taken, client, 1..=3);
        }
    });
}

#[test]
fn stores_elsewhere_are_counted_and_do_nothing_else() {
    each(|guest| {
        let segment = Segment::new(4);
        let (_, stderr) = guest.act(&segment, &[], &["outside", "0", "3"]);
        let taken = segment.take();
        assert_eq!(taken.points.len(), 3);
        check(&taken, 4, 1..=3);
        for count in ["recorded 3,", "unassigned 6,", "bad_slot 1"] {
            assert!(stderr.contains(count), "{}: {stderr}", guest.name);
        }
        // QEMU 7.2 counts a few stores more than the program makes. The number of additional stores depends
        // on the last instruction before the end of a page.
        let outside = stderr.split("outside ").nth(1).and_then(|rest| rest.split(',').next());
        let outside: u32 = outside.unwrap().parse().unwrap();
        assert!((2000..2020).contains(&outside), "{}: {stderr}", guest.name);
    });
}

#[test]
fn a_marked_store_may_be_split() {
    each(|guest| {
        let segment = Segment::new(4);
        let (stdout, _) = guest.act(&segment, &[], &["split"]);
        let count = segment.take().points.len();
        assert!(count > 0 && stdout.contains(&format!("points {count}\n")), "{stdout}");
    });
}

#[test]
fn one_instruction_a_block() {
    each(|guest| {
        let segment = Segment::new(4);
        guest.act(&segment, &["-singlestep"], &["threads", "2", "10"]);
        check(&segment.take(), 4, 1..=10);
    });
}

#[test]
fn code_may_be_rewritten_while_it_runs() {
    each(|guest| {
        let segment = Segment::new(4);
        guest.act(&segment, &[], &["rewritten"]);
        let seqs = (1..=200).filter(|n| n % 3 == 0).flat_map(|n| [n, n]);
        check(&segment.take(), 4, seqs);
    });
}

#[test]
fn without_a_marker_nothing_is_instrumented() {
    each(|guest| {
        let segment = Segment::new(4);
        let (_, stderr) = guest.act(&segment, &[], &["unmarked"]);
        assert!(segment.take().points.is_empty());
        assert!(stderr.ends_with("hypertrace: recorded 0\n"), "{stderr}");
    });
}

#[test]
fn points_that_a_full_relay_cannot_hold_are_left_to_the_host() {
    each(|guest| {
        let small = Geometry { ring_bytes: 1 << 12, block_bytes: 1 << 8, ..geometry() };
        let segment = Segment::with(small, 1);
        let (stdout, stderr) = guest.act(&segment, &[], &["flood", "1000"]);
        let count = segment.take().points.len();
        assert!((10..100).contains(&count), "{count}");
        assert!(stdout.contains(&format!("answered {count}\n")), "{stdout}");
        assert!(stderr.contains(&format!("left_full {}", 1000 - count)), "{stderr}");
        // The plugin asked the host to drain the ring.
        assert_ne!(segment.byte(BELLS), 0);
    });
}

#[test]
fn without_a_relay_points_are_left_to_the_host() {
    each(|guest| {
        let segment = Segment::new(0);
        let (stdout, stderr) = guest.act(&segment, &[], &["flood", "100"]);
        assert!(stdout.contains("answered 0\n"), "{stdout}");
        assert!(stderr.contains("left_no_relay 100"), "{stderr}");
    });
}

#[test]
fn points_with_triggers_are_left_to_the_host() {
    each(|guest| {
        let segment = Segment::new(4);
        segment.set_trigger(NAME_HASH);
        let (stdout, stderr) = guest.act(&segment, &[], &["flood", "100"]);
        assert!(stdout.contains("answered 0\n"), "{stdout}");
        assert!(stderr.contains("left_for_triggers 100"), "{stderr}");
        assert!(segment.take().points.is_empty());
    });
}

#[test]
fn a_host_that_does_not_serve_is_not_spoken_for() {
    each(|guest| {
        for state in [State::New, State::Ended] {
            let segment = Segment::new(4);
            segment.set_state(state);
            let (stdout, stderr) = guest.act(&segment, &[], &["flood", "100"]);
            assert!(stdout.contains("answered 0\n"), "{stdout}");
            assert!(stderr.contains("left_not_serving 100"), "{stderr}");
        }
    });
}
