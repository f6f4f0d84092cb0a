// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of how regions are chosen: by the fields of their events, and by their durations.

use crate::made_regions::{counts, lease, read, stream};
use hypertrace_test_support::made::{Made, Packet};
use hypertrace_timeline::regions::{By, Choice, LeftOut, Options, Regions};
use hypertrace_timeline::{Filter, Given, Recording};
use proptest::prelude::*;

/// The event that begins a request has a number of bytes and the path. The event that ends the request has a
/// number of bytes and the status.
const EVENTS: &str = r#"[
    {"id":16,"schema":"request_begin(id:u64,bytes:u64,path:str)","reference_point":false},
    {"id":17,"schema":"request_end(id:u64,bytes:u64,status:u64)","reference_point":false},
    {"id":18,"schema":"parse_begin(id:u64)","reference_point":false},
    {"id":19,"schema":"parse_end(id:u64)","reference_point":false},
    {"id":20,"schema":"empty_begin(id:u64)","reference_point":false},
    {"id":21,"schema":"empty_end(id:u64)","reference_point":false}]"#;

fn request_begins(packet: Packet, at: u64, id: u64, bytes: u64, path: &str) -> Packet {
    packet.event_str(at, 16, &[id, bytes], path.as_bytes())
}

/// Makes requests of 100, 200, 300 ns, with a `parse` of 10 ns in each.
fn requests() -> Made {
    let requests = [(1, "/a", 200), (2, "/b", 500), (3, "/a", 500)];
    let packet = requests.into_iter().fold(lease(0, 1, 9, 50, 60), |packet, (id, path, status)| {
        let at = id * 1_000;
        let packet = request_begins(packet, at, id, id * 7, path);
        let packet = packet.event(at + 20, 18, &[id]).event(at + 30, 19, &[id]);
        let packet = packet.event(at + 100 * id, 17, &[id, id * 10, status]);
        packet.event(at + 900, 20, &[id]).event(at + 901, 21, &[id])
    });
    stream(Made::of_programs(EVENTS), 0, &[packet])
}

fn fitting(text: &str) -> Options {
    let filter = Some(Filter::of_regions(text).unwrap());
    Options { choice: Choice { filter, ..Choice::default() }, ..Options::default() }
}

/// Returns the names, values and durations of the groups.
fn shown(regions: &Regions) -> Vec<(&str, Option<&str>, &[u64])> {
    let groups = regions.groups.iter();
    groups.map(|group| (&*group.name, group.value(), group.durations_ns())).collect()
}

#[test]
fn a_filter_asks_for_what_the_begin_and_the_end_say() {
    let made = requests();
    for (text, durations) in [
        ("path == '/a'", &[100, 300][..]),
        ("status == 500", &[200, 300]),
        ("path == '/a' and status == 500", &[300]),
        // Both events have `bytes`, and the later value counts.
        ("bytes == 20", &[200]),
        ("bytes == 14", &[]),
        ("name == 'request' and duration_ns >= 200", &[200, 300]),
        ("name == 'request' and duration_ns < 200", &[100]),
        ("name == 'request' and source == 'program/0 program'", &[100, 200, 300]),
        ("name == 'request' and pid == 50 and tid == 60", &[100, 200, 300]),
        ("name == 'request' and not client == 0", &[]),
    ] {
        let regions = read(&made, &fitting(text));
        let expected = [("request", None, durations)];
        let expected = if durations.is_empty() { &[][..] } else { &expected };
        assert_eq!(shown(&regions), expected, "{text}");
        assert_eq!(regions.samples().count(), durations.len(), "{text}");
        let left_out = regions.left_out[LeftOut::Filter as usize];
        assert_eq!(left_out, 9 - durations.len() as u64, "{text}");
    }
}

#[test]
fn all_that_is_inside_of_a_region_that_fits_is_its_child() {
    let made = requests();

    let regions = read(&made, &fitting("status == 500"));

    let request = &regions.groups[0];
    let children = request.children.iter();
    let children: Vec<_> =
        children.map(|c| (c.name.as_deref(), c.count, c.times.total())).collect();
    assert_eq!(children, [(Some("parse"), 2, 20)]);
    assert_eq!(request.own.duration_ns, 500 - 20);
    // If a region matches the filter but the region around it does not, then the inner region is not counted
    // as a child.
    let regions = read(&made, &fitting("name == 'parse'"));
    assert_eq!(shown(&regions), [("parse", None, &[10, 10, 10][..])]);
}

#[test]
fn what_is_inside_of_a_child_is_not_counted_twice() {
    let packet = request_begins(lease(0, 1, 9, 50, 60), 10, 1, 0, "/outer");
    let packet = request_begins(packet.event(20, 18, &[1]), 30, 2, 0, "/inner");
    let packet = packet.event(40, 17, &[2, 0, 0]).event(50, 19, &[1]).event(90, 17, &[1, 0, 1]);
    let made = stream(Made::of_programs(EVENTS), 0, &[packet]);

    for filter in ["path == '/outer'", "name == 'request'"] {
        let regions = read(&made, &fitting(filter));
        let request = &regions.groups[0];
        let [parse] = &request.children[..] else { panic!("{:?}", request.children) };
        assert_eq!((parse.name.as_deref(), parse.times.total()), (Some("parse"), 30), "{filter}");
    }
}

#[test]
fn the_value_of_the_end_makes_the_group_and_no_other_value_has_one() {
    let made = requests();
    let by = |field: &str, options| Options { by: By::Field(field.into()), ..options };

    let regions = read(&made, &by("bytes", fitting("name == 'request'")));
    let expected: [(_, _, &[u64]); 3] = [
        ("request", Some("10"), &[100]),
        ("request", Some("20"), &[200]),
        ("request", Some("30"), &[300]),
    ];
    assert_eq!(shown(&regions), expected);

    let regions = read(&made, &by("path", fitting("status == 200")));
    assert_eq!(shown(&regions), [("request", Some("/a"), &[100][..])]);
    assert!(!regions.has_others);
}

#[test]
fn empty_regions_are_kept_for_their_cost() {
    let mut options = fitting("status == 500");
    options.choice.keeps_empty = true;

    let regions = read(&requests(), &options);

    let expected: [(_, _, &[u64]); 2] =
        [("empty", None, &[1, 1, 1]), ("request", None, &[200, 300])];
    assert_eq!(shown(&regions), expected);
    assert_eq!(regions.groups[1].empty_ns, Some(1));
}

#[test]
fn a_region_that_cannot_be_measured_is_judged_by_the_event_that_it_has() {
    let packet = request_begins(lease(0, 1, 9, 50, 60), 10, 1, 0, "/a");
    let packet = request_begins(packet, 20, 2, 0, "/b").event(30, 17, &[3, 0, 500]);
    let made = stream(Made::of_programs(EVENTS), 0, &[packet]);

    let kinds = |filter| counts(&read(&made, &fitting(filter))).1;

    assert_eq!(kinds("path == '/a'"), [("begin_without_end", 1)]);
    assert_eq!(kinds("status == 500"), [("end_without_begin", 1)]);
    assert_eq!(kinds("duration_ns >= 0"), []);
    assert_eq!(kinds("not status == 1"), [("begin_without_end", 2), ("end_without_begin", 1)]);
}

#[test]
fn a_time_chooses_regions_by_their_begins() {
    let begin =
        |regions: &Regions, id| regions.samples().find(|sample| sample.id == id).unwrap().begin_ns;
    let made = requests();
    let all = read(&made, &fitting("name == 'request'"));
    let (second, third) = (begin(&all, 2), begin(&all, 3));
    for (from_ns, to_ns, durations) in [
        (Some(second), None, &[200, 300][..]),
        (Some(second + 1), None, &[300]),
        (None, Some(third), &[100, 200]),
        (Some(second), Some(third), &[200]),
        (Some(third), Some(second), &[]),
        (Some(i64::MIN), Some(i64::MAX), &[100, 200, 300]),
    ] {
        let mut options = fitting("name == 'request'");
        (options.choice.from_ns, options.choice.to_ns) = (from_ns, to_ns);
        let regions = read(&made, &options);
        let found: Vec<u64> = regions.samples().map(|sample| sample.duration_ns()).collect();
        assert_eq!(found, durations, "{from_ns:?} {to_ns:?}");
        let left_out = regions.left_out;
        assert_eq!(left_out.iter().sum::<u64>(), 9 - durations.len() as u64);
        let [request] = &regions.groups[..] else { continue };
        assert_eq!(request.children[0].count, request.count);
    }
}

#[test]
fn a_region_that_ends_without_a_begin_has_the_time_of_its_end() {
    let packet = lease(0, 1, 9, 50, 60).event(1_000, 17, &[7, 0, 0]).event(1_100, 18, &[1]);
    let made = stream(Made::of_programs(EVENTS), 0, &[packet]);
    let first = hypertrace_test_support::made::START_NS + 1_000;
    for (shift, expected) in [(0, 1), (1, 0)] {
        let mut options = Options::default();
        options.choice.from_ns = Some(first + shift);
        let kinds = counts(&read(&made, &options)).1;
        let count = kinds.iter().find(|(kind, _)| *kind == "end_without_begin");
        assert_eq!(count.map_or(0, |(_, count)| *count), expected);
    }
}

#[test]
fn a_field_may_have_another_type_in_another_session() {
    let numbers = EVENTS.replace("path:str", "path:u64");
    let packet = lease(0, 1, 9, 50, 60).event(1_000, 16, &[1, 0, 7]).event(1_400, 17, &[1, 0, 0]);
    let all = [requests(), stream(Made::of_programs(&numbers), 0, &[packet])];
    let recording = Recording::open(&all.each_ref().map(|made| Given::new(made.path()))).unwrap();

    for (filter, durations) in [
        ("path == '/b'", &[200][..]),
        ("path == 7", &[400]),
        ("path == 7.0 or path == '/b'", &[400, 200]),
        ("path != 'x' and path != 8", &[]),
    ] {
        let regions = Regions::of(&recording, &fitting(filter)).unwrap();
        let found: Vec<u64> = regions.samples().map(|sample| sample.duration_ns()).collect();
        assert_eq!(found, durations, "{filter}");
    }
    let by = Options { by: By::Field("path".into()), ..fitting("path == 7 or path == '/a'") };
    let regions = Regions::of(&recording, &by).unwrap();
    let values: Vec<_> = regions.groups.iter().map(|group| group.value()).collect();
    assert_eq!(values, [Some("/a"), Some("7")]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The filter keeps each request that matches, even inside another request. The requests have the same
    /// children as without a filter.
    #[test]
    fn a_filter_changes_no_region_that_fits(
        steps in prop::collection::vec((1u64..5, 0u64..4, any::<bool>()), 1..100),
    ) {
        let (mut now, mut id, mut open, mut packet) = (10, 0, Vec::new(), lease(0, 1, 9, 50, 60));
        for (pause, bytes, begins) in steps.iter().copied().chain([(1, 0, false); 100]) {
            now += pause;
            if begins {
                id += 1;
                open.push(id);
                packet = request_begins(packet, now, id, bytes, "/");
            } else if let Some(id) = open.pop() {
                packet = packet.event(now, 17, &[id, bytes, 0]);
            }
        }
        let made = stream(Made::of_programs(EVENTS), 0, &[packet]);
        let by = |options| Options { by: By::Field("bytes".into()), ..options };

        let all = read(&made, &by(Options::default()));
        for bytes in 0..4 {
            let chosen = read(&made, &by(fitting(&format!("bytes == {bytes}"))));
            let value = bytes.to_string();
            let expected = all.groups.iter().find(|group| group.value() == Some(&*value));
            prop_assert_eq!(chosen.groups.len(), usize::from(expected.is_some()));
            for (chosen, expected) in chosen.groups.iter().zip(expected) {
                prop_assert_eq!(chosen.durations_ns(), expected.durations_ns());
                prop_assert_eq!(&chosen.children, &expected.children);
            }
            let left_out = chosen.left_out[LeftOut::Filter as usize];
            prop_assert_eq!(left_out + chosen.samples().count() as u64, id);
        }
    }
}
