// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of regions inside other regions: which region is the parent of an inner region, and how the times
//! add up.

use crate::made_regions::{lease, read, stream};
use hypertrace_test_support::made::{Made, Packet};
use hypertrace_test_support::{trace_dat, vcpu};
use hypertrace_timeline::regions::{By, Group, Options, Part, Regions};
use proptest::prelude::*;

const NAMES: [&str; 3] = ["parse", "render", "request"];

/// Makes the schemas of regions with these names. The event that begins the first region has the id 16, the
/// event that ends the first region has the id 17, and so on.
fn schemas<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let ends = names.into_iter().flat_map(|name| [(name, "begin"), (name, "end")]);
    let all = ends.zip(16..).map(|((name, end), id)| {
        format!(r#"{{"id":{id},"schema":"{name}_{end}(id:u64)","reference_point":false}}"#)
    });
    format!("[{}]", Vec::from_iter(all).join(","))
}

/// Events of a client: time, id of the name, whether the event begins a region, and the region's id.
type Events<'a> = &'a [(u64, u32, bool, u64)];

fn packet(client: u32, events: Events<'_>) -> Packet {
    let token = u64::from(client) + 9;
    events.iter().fold(lease(client, 1, token, token, 100 + token), |packet, event| {
        let (time, name, begins, id) = *event;
        packet.event(time, 16 + 2 * name + u32::from(!begins), &[id])
    })
}

/// Makes a session of programs with these clients.
fn made(clients: &[Events<'_>]) -> Made {
    let made = Made::of_programs(&schemas(NAMES));
    (0..)
        .zip(clients)
        .fold(made, |made, (number, events)| stream(made, number, &[packet(number, events)]))
}

fn regions(clients: &[Events<'_>]) -> Regions {
    read(&made(clients), &Options::default())
}

fn group<'r>(regions: &'r Regions, name: &str) -> &'r Group {
    regions.groups.iter().find(|group| group.name == name).unwrap()
}

/// Returns a group's children: name, number and time.
fn children(group: &Group) -> Vec<(&str, u64, u64)> {
    let all = group.children.iter();
    all.map(|child| (child.name.as_deref().unwrap_or("-"), child.count, child.times.total()))
        .collect()
}

const PARSE: u32 = 0;
const RENDER: u32 = 1;
const REQUEST: u32 = 2;

#[test]
fn the_parts_of_a_region_are_its_own_and_those_of_its_children() {
    let events = [
        (1_000, REQUEST, true, 1),
        (1_200, PARSE, true, 1),
        (5_200, PARSE, false, 1),
        (5_500, PARSE, true, 2),
        (5_600, PARSE, false, 2),
        (6_000, RENDER, true, 1),
        (9_000, RENDER, false, 1),
        (9_100, REQUEST, false, 1),
    ];
    let made = made(&[&events]);
    let (program, other) = ((109, "program"), (9, "other"));
    let at = |time: u64, id, payload| (vcpu::HOST_BASE + time, id, 109, payload);
    let switch = |from, state, to| trace_dat::switch(from, state, to);
    // The program is blocked in the first `parse`, and preempted in the request itself.
    let kernel = [
        at(500, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(2_000, trace_dat::SCHED_SWITCH_ID, switch(program, 1, other)),
        at(4_900, trace_dat::SCHED_WAKEUP_ID, trace_dat::wakeup(109, "program")),
        at(5_000, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(5_700, trace_dat::SCHED_SWITCH_ID, switch(program, 0x100, other)),
        at(5_800, trace_dat::SCHED_SWITCH_ID, switch(other, 0, program)),
        at(9_500, trace_dat::SCHED_SWITCH_ID, switch(program, 0x100, other)),
    ];
    made.kernel(&trace_dat::TraceDat::new("x86-tsc").cpu(&trace_dat::Page::all(&kernel)));

    let regions = read(&made, &Options::default());

    let request = group(&regions, "request");
    assert_eq!(children(request), [("parse", 2, 4_100), ("render", 1, 3_000)]);
    let own = request.own.times;
    assert_eq!((own.total(), own.get(Part::OnCpu), own.get(Part::Runnable)), (1_000, 900, 100));
    let parse = request.children[0].times;
    assert_eq!((parse.get(Part::Blocked), parse.get(Part::Runnable)), (2_900, 100));
    assert_eq!(group(&regions, "parse").own.times, group(&regions, "parse").total.times);
}

#[test]
fn each_depth_of_a_recursion_is_a_region() {
    let events = [
        (10, PARSE, true, 1),
        (20, PARSE, true, 2),
        (30, PARSE, true, 3),
        (40, PARSE, false, 3),
        (60, PARSE, false, 2),
        (100, PARSE, false, 1),
    ];

    let regions = regions(&[&events]);

    let parse = group(&regions, "parse");
    assert_eq!(parse.durations_ns(), [10, 40, 90]);
    assert_eq!(children(parse), [("parse", 2, 50)]);
    assert_eq!(parse.own.duration_ns, 90, "what the outermost one took");
}

#[test]
fn a_child_is_of_the_innermost_region_that_is_counted() {
    // The middle region begins twice with one id, so it is not counted. Later, another region has the same
    // depth.
    let events = [
        (10, REQUEST, true, 1),
        (20, RENDER, true, 7),
        (25, RENDER, true, 7),
        (30, PARSE, true, 1),
        (40, PARSE, false, 1),
        (50, RENDER, false, 7),
        (60, RENDER, true, 8),
        (70, RENDER, false, 8),
        (80, REQUEST, false, 1),
    ];

    let regions = regions(&[&events]);

    assert_eq!(children(group(&regions, "render")), []);
    let expected = [("parse", 1, 10), ("render", 1, 10)];
    assert_eq!(children(group(&regions, "request")), expected);
}

#[test]
fn a_region_that_ends_after_the_one_around_it_is_no_child() {
    let events = [
        (10, PARSE, true, 1),
        (20, RENDER, true, 1),
        (30, PARSE, false, 1),
        (40, RENDER, false, 1),
        // This region ends at the time at which the next region begins.
        (50, PARSE, true, 2),
        (50, PARSE, false, 2),
        (50, RENDER, true, 2),
        (60, RENDER, false, 2),
    ];

    let regions = regions(&[&events]);

    assert_eq!(regions.samples().count(), 4);
    assert!(regions.groups.iter().all(|group| group.children.is_empty()));
}

#[test]
fn regions_of_another_client_are_no_children() {
    let outer = [(10, REQUEST, true, 1), (100, REQUEST, false, 1)];
    let inner = [(20, PARSE, true, 1), (30, PARSE, false, 1)];

    let regions = regions(&[&outer, &inner]);

    assert!(regions.groups.iter().all(|group| group.children.is_empty()));
    let both = [outer[0], inner[0], inner[1], outer[1]];
    let by_client = Options { by: By::Thread, ..Options::default() };
    let regions = read(&made(&[&outer, &both]), &by_client);
    let found: Vec<_> = regions.groups.iter().map(children).collect();
    // The groups are `parse` of client 1, and `request` of clients 0 and 1.
    assert_eq!(found, [vec![], vec![], vec![("parse", 1, 10)]]);
}

#[test]
fn children_of_many_names_are_others() {
    let names: Vec<String> = (0..40).map(|n| format!("n{n:02}")).collect();
    let made = Made::of_programs(&schemas(names.iter().map(String::as_str).chain(["a"])));
    let inside = (0..40).flat_map(|n| {
        let begin = 10 + 10 * u64::from(n);
        [(begin, n, true, 1), (begin + 1, n, false, 1)]
    });
    let events: Vec<_> =
        [(5, 40, true, 1)].into_iter().chain(inside).chain([(900, 40, false, 1)]).collect();
    let made = stream(made, 0, &[packet(0, &events)]);

    let regions = read(&made, &Options::default());

    let found = children(group(&regions, "a"));
    assert_eq!(found.len(), 33);
    assert!(
        found[..32].iter().all(|(name, count, time)| *name != "-" && (*count, *time) == (1, 1))
    );
    assert_eq!(found[32], ("-", 8, 8));
    assert_eq!(group(&regions, "a").own.duration_ns, 895 - 40);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The counted regions' own times contain each moment once, whatever the nesting of the regions is.
    #[test]
    fn own_times_add_up_to_those_of_the_outermost_regions(
        steps in prop::collection::vec((0u64..5, 0u32..3, any::<bool>()), 1..200),
    ) {
        let (mut now, mut id, mut open, mut events) = (10, 0, Vec::new(), Vec::new());
        let (mut outermost, mut begun) = (0, 0);
        for (pause, name, begins) in steps.iter().copied().chain([(1, 0, false); 200]) {
            now += pause;
            if begins {
                id += 1;
                if open.is_empty() {
                    begun = now;
                }
                open.push((name, id));
                events.push((now, name, true, id));
            } else if let Some((name, id)) = open.pop() {
                events.push((now, name, false, id));
                if open.is_empty() {
                    outermost += now - begun;
                }
            }
        }

        let regions = regions(&[&events]);

        let own: u64 = regions.groups.iter().map(|group| group.own.duration_ns).sum();
        prop_assert_eq!(own, outermost);
        let counted = regions.samples().count() as u64;
        prop_assert_eq!(counted, id);
    }
}
