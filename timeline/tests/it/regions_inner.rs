// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of spans of the crate `tracing` inside a span that several threads can poll, made event by event.

use crate::made_regions::*;
use hypertrace_test_support::cpus::{ASLEEP, Cpus, READY, Task};
use hypertrace_test_support::made::{Made, Packet};
use hypertrace_timeline::regions::*;
use proptest::prelude::*;

/// Names of spans.
const NAMES: [&str; 4] = ["request", "parse", "query", "reply"];
const REQUEST: usize = 0;
const PARSE: usize = 1;
const QUERY: usize = 2;
const REPLY: usize = 3;
/// Threads of the program that each client has. The last thread is of another process.
const THREADS: [Task; 3] = [(200, "a"), (201, "b"), (202, "other")];
const OTHER: u32 = 2;

/// Events of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The begin of a span: the index of its name, and the id of the span around the new span.
    Begin(usize, u64),
    /// The end of a span that was entered once, on the thread that closes it.
    End(usize),
    /// The end of any other span.
    PartedEnd(usize),
    PollBegin,
    PollEnd,
    /// The client loses this many events, because its ring is full.
    Gap,
    WorkBegin,
    WorkEnd,
}

use Of::*;

/// An event: time, client, what the event is, id of the span.
type Event = (u64, u32, Of, u64);

fn schemas() -> String {
    let of_name = |(name, id): (&&str, usize)| {
        let class = |id: usize, schema: &str| {
            format!(r#"{{"id":{id},"schema":"{name}_{schema}","reference_point":false}}"#)
        };
        let begin = class(id, "begin(id:u64,parent:u64,target:str)");
        [begin, class(id + 1, "end(id:u64)"), class(id + 2, "end(id:u64,any_client:bool)")]
    };
    let all = NAMES.iter().zip((20..).step_by(3)).flat_map(of_name);
    let others =
        ["poll_begin(span:u64)", "poll_end(span:u64)", "work_begin(id:u64)", "work_end(id:u64)"];
    let others = others.iter().zip(16..).map(|(schema, id)| {
        format!(r#"{{"id":{id},"schema":"{schema}","reference_point":false}}"#)
    });
    format!("[{}]", Vec::from_iter(others.chain(all)).join(","))
}

fn made(events: &[Event]) -> Made {
    let mut events = events.to_vec();
    events.sort_by_key(|(time, ..)| *time);
    (0..).zip(THREADS).fold(Made::of_programs(&schemas()), |made, (client, (tid, name))| {
        let process = if client == OTHER { 51 } else { 50 };
        let token = u64::from(client) + 9;
        let begin = Packet::new(1, client, 0).with64(80, token);
        let begin = begin.event_str(1, 1, &[token, process, tid.into(), 0], name.as_bytes());
        let mut packets = vec![Packet::new(1, client, 0)];
        let own = events.iter().filter(|(_, of, ..)| *of == client);
        let packet = own.fold(begin, |packet, (time, _, event, id)| match *event {
            Begin(name, parent) => {
                packet.event_str(*time, 20 + 3 * name as u32, &[*id, parent], b"app")
            }
            End(name) => packet.event(*time, 21 + 3 * name as u32, &[*id]),
            PartedEnd(name) => packet.event(*time, 22 + 3 * name as u32, &[*id, 1]),
            PollBegin => packet.event(*time, 16, &[*id]),
            PollEnd => packet.event(*time, 17, &[*id]),
            WorkBegin => packet.event(*time, 18, &[*id]),
            WorkEnd => packet.event(*time, 19, &[*id]),
            Gap => {
                let packet = packet.with64(56, *id);
                packets.push(packet.clone());
                Packet::new(1, client, 0).after(&packet)
            }
        });
        packets.push(packet);
        made.stream(&format!("guest-{client:03}-0000"), &packets)
    })
}

fn group<'r>(regions: &'r Regions, name: &str) -> &'r Group {
    regions.groups.iter().find(|group| group.name == name).unwrap()
}

/// Returns a time and its idle and unknown parts.
fn parts(times: &Times) -> [u64; 3] {
    [times.total(), times.get(Part::Idle), times.get(Part::Unknown)]
}

/// A row: name, count, and time with its idle and unknown parts.
type Row<'a> = (&'a str, u64, [u64; 3]);

/// Returns the rows of a group's children. The first row is `self`. Tests that the rows add up.
#[track_caller]
fn rows<'r>(regions: &'r Regions, name: &str) -> Vec<Row<'r>> {
    let group = group(regions, name);
    let children = group.children.iter();
    let children = children.map(|child| {
        assert_eq!(child.duration_ns, child.times.total());
        (child.name.as_deref().unwrap_or("-"), child.count, parts(&child.times))
    });
    let own = ("self", group.count, parts(&group.own.times));
    let all = Vec::from_iter([own].into_iter().chain(children));
    let sum: u64 = all.iter().map(|(.., [ns, ..])| ns).sum();
    assert_eq!((group.own.duration_ns, sum), (all[0].2[0], group.total.duration_ns));
    all
}

/// Returns the events of a request on two threads, together with the events `inner` of the spans inside it.
/// The request is polled from 1,000 to 1,400 and from 2,000 to 2,400, and dropped at 3,000.
fn request(inner: &[Event]) -> Vec<Event> {
    let mut events = vec![(1_000, 0, Begin(REQUEST, 0), 1)];
    events.extend(inner.iter().filter(|(time, ..)| *time <= 1_400));
    events.extend([(1_400, 0, PollEnd, 1), (2_000, 1, PollBegin, 1)]);
    events.extend(inner.iter().filter(|(time, ..)| (1_401..=2_400).contains(time)));
    events.extend([(2_400, 1, PollEnd, 1), (3_000, 1, PollBegin, 1), (3_010, 1, PollEnd, 1)]);
    events.push((3_010, 1, PartedEnd(REQUEST), 1));
    events.extend(inner.iter().filter(|(time, ..)| *time > 2_400));
    events
}

/// Returns the same events 10,000 ns later.
fn later(events: &[Event]) -> Vec<Event> {
    events.iter().map(|(time, client, of, id)| (time + 10_000, *client, *of, *id)).collect()
}

/// Events of a query that is polled in both polls of such a request.
const IN_BOTH: [Event; 7] = [
    (1_100, 0, Begin(QUERY, 1), 2),
    (1_390, 0, PollEnd, 2),
    (2_010, 1, PollBegin, 2),
    (2_200, 1, PollEnd, 2),
    (2_200, 1, PollBegin, 2),
    (2_210, 1, PollEnd, 2),
    (2_210, 1, PartedEnd(QUERY), 2),
];

#[test]
fn a_span_inside_a_span_that_awaits_is_its_child() {
    let regions = all(&made(&request(&IN_BOTH)));

    assert_eq!(group(&regions, "request").total.duration_ns, 2_010);
    let query = ("query", 1, [1_110, 620, 490]);
    // The request is idle from 2,400 to 3,000. No kernel says what the threads did in the polls.
    let own = ("self", 1, [900, 600, 300]);
    assert_eq!(rows(&regions, "request"), [own, query]);
    assert_eq!(parts(&group(&regions, "query").total.times), query.2);
    assert_eq!(rows(&regions, "query").len(), 2);
    assert_eq!(group(&regions, "poll").count, 4);
}

#[test]
fn spans_one_after_the_other_are_children_by_name() {
    let inner = [
        (1_100, 0, Begin(PARSE, 1), 2),
        (1_150, 0, End(PARSE), 2),
        (1_200, 0, Begin(QUERY, 1), 3),
        (1_390, 0, PollEnd, 3),
        (2_010, 1, PollBegin, 3),
        (2_200, 1, PollEnd, 3),
        (2_200, 1, PollBegin, 3),
        (2_200, 1, PollEnd, 3),
        (2_200, 1, PartedEnd(QUERY), 3),
        (2_300, 1, Begin(QUERY, 1), 4),
        (2_350, 1, PollEnd, 4),
        (2_350, 1, End(QUERY), 4),
    ];

    let regions = all(&made(&request(&inner)));

    let expected =
        [("self", 1, [910, 600, 310]), ("query", 2, [1_050, 620, 430]), ("parse", 1, [50, 0, 50])];
    assert_eq!(rows(&regions, "request"), expected);
    // The polls of the request are still regions with children.
    let polls = group(&regions, "poll").children.iter();
    let polls = polls.map(|child| (child.name.as_deref().unwrap(), child.count));
    assert_eq!(Vec::from_iter(polls), [("poll", 2), ("parse", 1), ("query", 1)]);
}

#[test]
fn time_in_two_spans_counts_for_the_one_that_began_first() {
    let inner = [
        (1_100, 0, Begin(PARSE, 1), 2),
        (1_200, 0, PollEnd, 2),
        (1_200, 0, Begin(QUERY, 1), 3),
        (1_300, 0, PollEnd, 3),
        (1_300, 0, Begin(REPLY, 1), 4),
        (1_310, 0, PollEnd, 4),
        (2_000, 1, PollBegin, 4),
        (2_010, 1, PollEnd, 4),
        (2_010, 1, PartedEnd(REPLY), 4),
        (2_010, 1, PollBegin, 2),
        (2_100, 1, PollEnd, 2),
        (2_100, 1, PartedEnd(PARSE), 2),
        (2_100, 1, PollBegin, 3),
        (2_300, 1, PollEnd, 3),
        (2_300, 1, PartedEnd(QUERY), 3),
    ];

    let regions = all(&made(&request(&inner)));

    let expected = [
        ("self", 1, [810, 600, 210]),
        ("parse", 1, [1_000, 810, 190]),
        // Nobody knows whether the query was idle in its last 200 ns.
        ("query", 1, [200, 0, 200]),
        ("reply", 1, [0, 0, 0]),
    ];
    assert_eq!(rows(&regions, "request"), expected);
    assert_eq!(group(&regions, "query").total.duration_ns, 1_100);
}

#[test]
fn a_span_that_outlives_its_parent_is_no_child() {
    let mut inner = IN_BOTH.to_vec();
    inner[6].0 = 3_500;

    let regions = all(&made(&request(&inner)));

    let own = ("self", 1, [2_010 - 800, 1_200, 10]);
    assert_eq!(rows(&regions, "request"), [own, ("poll", 2, [800, 0, 800])]);
    assert_eq!(group(&regions, "query").count, 1);
}

#[test]
fn a_span_of_another_process_is_no_child() {
    let inner = IN_BOTH.map(|(time, _, of, id)| (time, OTHER, of, id));

    let regions = all(&made(&request(&inner)));

    assert_eq!(rows(&regions, "request")[1].0, "poll");
    assert_eq!(group(&regions, "query").count, 1);
}

#[test]
fn a_request_that_lost_events_has_the_spans_inside_that_are_known() {
    let mut inner = IN_BOTH.to_vec();
    inner.push((2_350, 1, Gap, 3));

    let regions = all(&made(&request(&inner)));

    let own = ("self", 1, [900, 0, 900]);
    assert_eq!(rows(&regions, "request"), [own, ("query", 1, [1_110, 620, 490])]);
}

#[test]
fn time_of_a_span_without_a_known_parent_or_end_is_the_requests_own() {
    let mut inner = IN_BOTH.to_vec();
    inner[0].2 = Begin(QUERY, 9);

    let regions = all(&made(&request(&inner)));

    assert_eq!(rows(&regions, "request")[1].0, "poll");
    let lost = IN_BOTH[..6].to_vec();
    let regions = all(&made(&request(&lost)));
    assert_eq!(rows(&regions, "request")[1].0, "poll");
    assert_eq!(counts(&regions).1, [("begin_without_end", 1)]);
}

#[test]
fn a_span_in_one_poll_is_a_child_of_the_poll_and_of_the_request() {
    let inner = [
        (1_100, 0, Begin(PARSE, 1), 2),
        (1_110, 0, WorkBegin, 7),
        (1_120, 0, WorkEnd, 7),
        (1_150, 0, End(PARSE), 2),
        (2_100, 1, WorkBegin, 8),
        (2_105, 1, WorkEnd, 8),
    ];

    let regions = all(&made(&request(&inner)));

    let own = ("self", 1, [1_960, 1_200, 760]);
    assert_eq!(rows(&regions, "request"), [own, ("parse", 1, [50, 0, 50])]);
    let expected = [("self", 2, [745, 0, 745]), ("parse", 1, [50, 0, 50]), ("work", 1, [5, 0, 5])];
    assert_eq!(rows(&regions, "poll"), expected);
    assert_eq!(rows(&regions, "parse")[1], ("work", 1, [10, 0, 10]));
}

#[test]
fn spans_three_deep_are_children_of_the_one_around_them() {
    let mut inner = IN_BOTH.to_vec();
    inner.splice(1..1, [(1_200, 0, Begin(PARSE, 2), 3), (1_380, 0, PollEnd, 3)]);
    inner.splice(
        4..4,
        [(2_020, 1, PollBegin, 3), (2_120, 1, PollEnd, 3), (2_120, 1, PartedEnd(PARSE), 3)],
    );

    let regions = all(&made(&request(&inner)));

    let query = ("query", 1, [1_110, 620, 490]);
    assert_eq!(rows(&regions, "request"), [("self", 1, [900, 600, 300]), query]);
    let parse = ("parse", 1, [920, 640, 280]);
    assert_eq!(rows(&regions, "query"), [("self", 1, [190, 0, 190]), parse]);
}

#[test]
fn a_span_that_is_given_up_has_no_children() {
    let mut events = Vec::new();
    for id in 1..=65_537 {
        events.extend([(1_000, 0, Begin(REQUEST, 0), id), (1_000, 0, PollEnd, id)]);
    }
    events.push((2_000, 0, Begin(QUERY, 1), 70_000));
    events.push((2_100, 0, End(QUERY), 70_000));
    events.extend([(3_000, 1, PartedEnd(REQUEST), 1), (3_000, 1, PartedEnd(REQUEST), 65_537)]);

    let regions = all(&made(&events));

    // The first request ends without a begin, so its target is not known.
    let expected = [("self", 1, [2_000, 2_000, 0]), ("poll", 1, [0, 0, 0])];
    assert_eq!(rows(&regions, "app::request"), expected);
    assert_eq!(group(&regions, "query").count, 1);
}

#[test]
fn a_number_that_begins_again_has_no_children_of_the_span_before() {
    let mut events = request(&IN_BOTH[..2]);
    events.insert(4, (1_500, 0, Begin(REQUEST, 0), 1));
    events.extend(IN_BOTH[2..].iter());

    let regions = all(&made(&events));

    assert_eq!(counts(&regions).1, [("id_twice", 1)]);
    assert!(rows(&regions, "request").iter().all(|(name, ..)| *name != "query"));
}

#[test]
fn a_request_with_and_one_without_spans_inside_are_one_group() {
    let mut events = request(&IN_BOTH);
    events.extend([
        (4_000, 0, Begin(REQUEST, 0), 9),
        (4_100, 0, PollEnd, 9),
        (4_500, 1, PartedEnd(REQUEST), 9),
        (5_000, 0, Begin(REQUEST, 0), 10),
        (5_010, 0, WorkBegin, 7),
        (5_030, 0, WorkEnd, 7),
        (5_100, 0, End(REQUEST), 10),
    ]);

    let regions = all(&made(&events));

    let expected = [
        ("self", 3, [900 + 500 + 80, 600 + 400, 300 + 100 + 80]),
        ("query", 1, [1_110, 620, 490]),
        ("work", 1, [20, 0, 20]),
    ];
    assert_eq!(rows(&regions, "request"), expected);
}

#[test]
fn spans_inside_that_are_not_chosen_are_children() {
    let made = made(&request(&IN_BOTH));
    let choice = Choice { names: vec!["request".into()], ..Choice::default() };

    let regions = read(&made, &Options { choice, ..Options::default() });

    let expected = [("self", 1, [900, 600, 300]), ("query", 1, [1_110, 620, 490])];
    assert_eq!(rows(&regions, "request"), expected);
    assert_eq!(regions.groups.len(), 1);
}

#[test]
fn polls_of_spans_that_are_not_chosen_take_no_room() {
    let made = made(&request(&IN_BOTH));
    let choice = Choice { names: vec!["query".into()], ..Choice::default() };

    // Room for the query and for its three entries.
    let options = Options { choice, most_regions: Some(4), ..Options::default() };
    let regions = read(&made, &options);

    let query = group(&regions, "query");
    assert_eq!((query.count, parts(&query.total.times)), (1, [1_110, 620, 490]));
    assert!(regions.warnings.iter().all(|of| !of.contains("regions:")), "{:?}", regions.warnings);
}

#[test]
fn sums_over_some_requests_have_the_spans_inside_these() {
    let mut events = request(&IN_BOTH);
    let later = |(time, client, of, id): Event| {
        let of = if of == Begin(QUERY, 1) { Begin(PARSE, 101) } else { of };
        let of = if of == PartedEnd(QUERY) { PartedEnd(PARSE) } else { of };
        // The later request is longer.
        (10_000 + 2 * time, client, of, id + 100)
    };
    events.extend(request(&IN_BOTH).into_iter().map(later));
    let regions = all(&made(&events));

    let sums = regions.sums(0.0..=0.0);

    let at = regions.groups.iter().position(|group| group.name == "request").unwrap();
    let children = sums[at].children.iter();
    let children = children.map(|child| (child.name.as_deref().unwrap(), child.duration_ns));
    assert_eq!((sums[at].total.regions, Vec::from_iter(children)), (1, vec![("query", 1_110)]));
}

#[test]
fn busy_time_outside_of_spans_inside_has_the_parts_that_are_known() {
    let [a, b, _] = THREADS;
    let other = (300, "other");
    let mut cpus = Cpus::new(2, &[a, b]);
    cpus.switch(0, READY, a).switch(1, READY, b);
    // Thread b waits for its CPU in the query, and later in the request.
    cpus.at(12_050).switch(1, READY, other).at(12_090).switch(1, READY, b);
    cpus.at(12_300).switch(1, READY, other).at(12_330).switch(1, READY, b);
    cpus.at(14_000).switch(0, ASLEEP, other).switch(1, ASLEEP, other);
    let made = made(&later(&request(&IN_BOTH)));
    made.kernel(&cpus.trace());

    let regions = all(&made);

    let known = [Part::OnCpu, Part::Runnable, Part::Idle, Part::Unknown];
    let request = group(&regions, "request");
    assert_eq!(known.map(|part| request.total.times.get(part)), [740, 70, 1_200, 0]);
    let [query] = &request.children[..] else { panic!() };
    assert_eq!(known.map(|part| query.times.get(part)), [450, 40, 620, 0]);
    // Between the polls of the query, the request was polled for 20 ns. No event shows whether the request's
    // thread ran at this time.
    assert_eq!(known.map(|part| request.own.times.get(part)), [270, 10, 600, 20]);
}

#[test]
fn a_span_that_another_thread_polls_meanwhile_says_nothing_of_the_requests_own_parts() {
    let [a, b, _] = THREADS;
    let mut cpus = Cpus::new(2, &[a, b]);
    cpus.switch(0, READY, a).switch(1, READY, b);
    cpus.at(14_000).switch(0, ASLEEP, (300, "other")).switch(1, ASLEEP, (300, "other"));
    // Thread b polls the query while thread a polls the request.
    let inner = [
        (1_100, 1, Begin(QUERY, 1), 2),
        (1_300, 1, PollEnd, 2),
        (1_300, 1, PollBegin, 2),
        (1_500, 1, PollEnd, 2),
        (1_600, 1, PartedEnd(QUERY), 2),
    ];
    let made = made(&later(&request(&inner)));
    made.kernel(&cpus.trace());

    let regions = all(&made);

    let known = [Part::OnCpu, Part::Idle, Part::Unknown];
    let request = group(&regions, "request");
    assert_eq!(known.map(|part| request.total.times.get(part)), [810, 1_200, 0]);
    assert_eq!(known.map(|part| request.children[0].times.get(part)), [400, 100, 0]);
    // The rest of the polls is time on a CPU.
    assert_eq!(known.map(|part| request.own.times.get(part)), [510, 1_000, 0]);
}

/// A span, with the tree of spans inside it. A program runs these spans. The span's children run one after
/// the other or at the same time.
#[derive(Clone, Debug)]
struct Tree {
    name: usize,
    at_once: bool,
    children: Vec<Tree>,
    /// Numbers of times that the span awaits something else: before its children, and after its children.
    awaits: [u8; 2],
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = (0..NAMES.len(), any::<[bool; 2]>()).prop_map(|(name, awaits)| Tree {
        name,
        at_once: false,
        children: Vec::new(),
        awaits: awaits.map(u8::from),
    });
    leaf.prop_recursive(4, 24, 4, |inner| {
        let children = prop::collection::vec(inner, 0..4);
        (0..NAMES.len(), any::<bool>(), children, [0..3u8, 0..3u8])
            .prop_map(|(name, at_once, children, awaits)| Tree { name, at_once, children, awaits })
    })
}

/// A span that runs.
struct Running<'t> {
    tree: &'t Tree,
    id: u64,
    polls: u32,
    first: u32,
    last: u32,
    awaits: [u8; 2],
    /// The children that have begun and not ended. The children in `later` have not begun.
    open: Vec<Running<'t>>,
    later: std::slice::Iter<'t, Tree>,
}

/// A program that polls spans, each poll on one of two threads.
struct Program<'p> {
    events: Vec<Event>,
    now: u64,
    last: u64,
    pauses: &'p mut dyn Iterator<Item = u64>,
}

impl<'t> Running<'t> {
    fn new(tree: &'t Tree, id: u64) -> Running<'t> {
        let (open, later) = (Vec::new(), tree.children.iter());
        Running { tree, id, polls: 0, first: 0, last: 0, awaits: tree.awaits, open, later }
    }
}

impl Program<'_> {
    fn emit(&mut self, client: u32, of: Of, id: u64) {
        self.now += self.pauses.next().unwrap_or(1);
        self.events.push((self.now, client, of, id));
    }

    /// Polls a span on a thread. Returns whether the span has ended.
    fn poll(&mut self, span: &mut Running<'_>, parent: u64, client: u32) -> bool {
        match span.polls {
            0 => {
                span.first = client;
                self.emit(client, Begin(span.tree.name, parent), span.id);
            }
            _ => self.emit(client, PollBegin, span.id),
        }
        span.polls += 1;
        let is_ready = self.run(span, client);
        self.emit(client, PollEnd, span.id);
        span.last = client;
        if is_ready {
            match span.polls == 1 && span.first == client {
                true => self.emit(client, End(span.tree.name), span.id),
                false => self.emit(client, PartedEnd(span.tree.name), span.id),
            }
        }
        is_ready
    }

    fn run(&mut self, span: &mut Running<'_>, client: u32) -> bool {
        if span.awaits[0] > 0 {
            span.awaits[0] -= 1;
            return false;
        }
        loop {
            while span.open.is_empty() || span.tree.at_once {
                let Some(tree) = span.later.next() else { break };
                self.last += 1;
                span.open.push(Running::new(tree, self.last));
            }
            let mut open = std::mem::take(&mut span.open);
            open.retain_mut(|child| !self.poll(child, span.id, client));
            span.open = open;
            if !span.open.is_empty() {
                return false;
            }
            if span.later.len() == 0 {
                break;
            }
        }
        let is_ready = span.awaits[1] == 0;
        span.awaits[1] = span.awaits[1].saturating_sub(1);
        is_ready
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For each name, the times of the children and of `self` add up to the total time of the spans with this
    /// name. `self` is the time outside of all inner spans, and its idle part is known.
    #[test]
    fn children_and_self_add_up(
        trees in prop::collection::vec(tree(), 1..4),
        pauses in prop::collection::vec(1u64..9, 1..40),
        clients in prop::collection::vec(0u32..2, 1..20),
        with_kernel in any::<bool>(),
    ) {
        let mut clients = clients.iter().copied().cycle();
        let mut pauses = pauses.iter().copied().cycle();
        let mut program = Program { events: Vec::new(), now: 5_000, last: 100, pauses: &mut pauses };
        for tree in &trees {
            program.last += 1;
            let mut root = Running::new(tree, program.last);
            while !program.poll(&mut root, 0, clients.next().unwrap()) {
                program.now += 100;
            }
        }
        let (events, end) = (program.events, program.now);
        let made = made(&events);
        if with_kernel {
            let [a, b, _] = THREADS;
            let mut cpus = Cpus::new(2, &[a, b]);
            cpus.switch(0, READY, a).switch(1, READY, b);
            cpus.at(end + 10).switch(0, ASLEEP, (300, "other")).switch(1, ASLEEP, (300, "other"));
            made.kernel(&cpus.trace());
        }

        let regions = all(&made);

        prop_assert_eq!(counts(&regions).1, vec![]);
        for (number, name) in NAMES.iter().enumerate() {
            if !regions.groups.iter().any(|group| group.name == *name) {
                continue;
            }
            let all = rows(&regions, name);
            let (own, idle) = expected(&events, number);
            if all.iter().skip(1).all(|(name, ..)| *name != "poll") {
                prop_assert_eq!(all[0].2[0], own, "{}: {:?}", name, events);
            }
            prop_assert_eq!(all[0].2[1], idle, "{}: {:?}", name, events);
            let group = group(&regions, name);
            let own = group.own.times;
            // All polls are on a CPU.
            let busy = if with_kernel { Part::OnCpu } else { Part::Unknown };
            prop_assert_eq!(own.get(busy) + own.get(Part::Idle), own.total(), "{:?}", events);
        }
    }
}

/// Adds up, nanosecond by nanosecond, the time that the spans of a name spend outside of their inner spans.
/// Returns this time and its idle part.
fn expected(events: &[Event], name: usize) -> (u64, u64) {
    let (mut own, mut idle) = (0, 0);
    for (begin, _, of, id) in events {
        let Begin(of, _) = *of else { continue };
        if of != name {
            continue;
        }
        let at = |wanted: &dyn Fn(&Of) -> bool, id: u64| {
            let found = events.iter().find(|(_, _, of, number)| *number == id && wanted(of));
            found.unwrap().0
        };
        let is_end = |of: &Of| matches!(of, End(_) | PartedEnd(_));
        let is_parted = |id: u64| {
            events.iter().any(|(_, _, of, number)| *number == id && matches!(of, PartedEnd(_)))
        };
        let end = at(&is_end, *id);
        let inner =
            events.iter().filter(|(_, _, of, _)| matches!(of, Begin(_, parent) if parent == id));
        let inner = Vec::from_iter(inner.map(|(begin, _, _, id)| (*begin, at(&is_end, *id))));
        let mut polls = Vec::new();
        for (time, _, of, number) in events.iter().filter(|(_, _, _, number)| number == id) {
            match of {
                Begin(..) | PollBegin => polls.push((*time, *time)),
                PollEnd => polls.last_mut().unwrap().1 = *time,
                _ => _ = number,
            }
        }
        for now in *begin..end {
            let is_in =
                |all: &[(u64, u64)]| all.iter().any(|(from, to)| (*from..*to).contains(&now));
            if !is_in(&inner) {
                own += 1;
                idle += u64::from(is_parted(*id) && !is_in(&polls));
            }
        }
    }
    (own, idle)
}
