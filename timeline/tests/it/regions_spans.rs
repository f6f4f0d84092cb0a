// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of spans of the crate `tracing`, made event by event. The tests check which spans are regions of one
//! thread, and into which parts the time of the other spans is divided.

use crate::made_regions::*;
use hypertrace_test_support::cpus::{ASLEEP, Cpus, READY, Task};
use hypertrace_test_support::made::{Made, Packet};
use hypertrace_test_support::trace_dat::Counted;
use hypertrace_timeline::regions::*;
use hypertrace_timeline::{Given, Recording};

const EVENTS: &str = r#"[
    {"id":16,"schema":"request_begin(id:u64,parent:u64,target:str)","reference_point":false},
    {"id":17,"schema":"request_end(id:u64)","reference_point":false},
    {"id":18,"schema":"request_end(id:u64,any_client:bool)","reference_point":false},
    {"id":19,"schema":"poll_begin(span:u64)","reference_point":false},
    {"id":20,"schema":"poll_end(span:u64)","reference_point":false},
    {"id":21,"schema":"span_lost(name:str)","reference_point":false},
    {"id":22,"schema":"work_begin(id:u64)","reference_point":false},
    {"id":23,"schema":"work_end(id:u64)","reference_point":false},
    {"id":24,"schema":"call_begin(id:u64,parent:u64,any_client:bool,target:str)","reference_point":false},
    {"id":25,"schema":"call_end(id:u64,any_client:bool)","reference_point":false}
]"#;

/// Events of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The begin of a span with this target.
    Begin(&'static str),
    /// The end of a span that was entered once, on the thread that closes it.
    End,
    /// The end of any other span.
    PartedEnd,
    PollBegin,
    PollEnd,
    Lost,
    /// The client loses this many events, because its ring is full.
    Gap,
    /// This many events of the client are overwritten.
    Overwritten,
    /// The thread with this id in the program's process leases the client.
    Lease,
    WorkBegin,
    WorkEnd,
    CallBegin,
    CallEnd,
}

use Of::*;

const BEGIN: Of = Begin("app");
/// Threads of the program that each client has.
const THREADS: [Task; 2] = [(200, "a"), (201, "b")];
/// Id of a client of another process.
const OTHER: u32 = 2;

/// Makes a session of a program with two threads. Each entry has a time, a client, an event, and the id of
/// the span. After these events, the first client loses `lost` events.
fn made(events: &[(u64, u32, Of, u64)], lost: u64) -> Made {
    made_of(EVENTS, events, lost)
}

/// Makes a session of a program with two threads, and with these schemas.
fn made_of(schemas: &str, events: &[(u64, u32, Of, u64)], lost: u64) -> Made {
    let threads = (0..).zip([THREADS[0], THREADS[1], (202, "other")]);
    threads.fold(Made::of_programs(schemas), |made, (client, (tid, name))| {
        let begin = Packet::new(1, client, 0);
        let token = u64::from(client) + 9;
        let process = if client == OTHER { 51 } else { 50 };
        let lease = [token, process, tid.into(), 0];
        let mut packets = vec![begin.clone()];
        let packet = begin.clone().with64(80, token).event_str(1, 1, &lease, name.as_bytes());
        let own = events.iter().filter(|(_, of, ..)| *of == client);
        let packet = own.fold(packet, |packet, (time, _, event, id)| match event {
            Begin(target) => packet.event_str(*time, 16, &[*id, 0], target.as_bytes()),
            End => packet.event(*time, 17, &[*id]),
            PartedEnd => packet.event(*time, 18, &[*id, 1]),
            PollBegin => packet.event(*time, 19, &[*id]),
            PollEnd => packet.event(*time, 20, &[*id]),
            Lost => packet.event_str(*time, 21, &[], b"request"),
            Gap => {
                let packet = packet.with64(56, *id);
                packets.push(packet.clone());
                Packet::new(1, client, 0).after(&packet)
            }
            Overwritten => {
                packets.push(packet.clone());
                Packet::new(1, client, 0).after(&packet).with64(56, *id)
            }
            Lease => packet.event_str(*time, 1, &[99, *id, 210, 0], b"next"),
            WorkBegin => packet.event(*time, 22, &[*id]),
            WorkEnd => packet.event(*time, 23, &[*id]),
            CallBegin => packet.event_str(*time, 24, &[*id, 0, 1], b"app"),
            CallEnd => packet.event(*time, 25, &[*id, 1]),
        });
        let lost = if client == 0 { lost } else { 0 };
        let next = Packet::new(1, client, 0).after(&packet);
        let next = if lost > 0 { next.with64(56, lost) } else { next };
        packets.extend([packet, next]);
        made.stream(&format!("guest-{client:03}-0000"), &packets)
    })
}

/// Returns for each group its name, the number of regions, and the sums of their time, idle time and unknown
/// time.
fn sums(regions: &Regions) -> Vec<(&str, u64, [u64; 3])> {
    let of = |group: &'_ Group| {
        let times = &group.total.times;
        [group.total.duration_ns, times.get(Part::Idle), times.get(Part::Unknown)]
    };
    regions.groups.iter().map(|group| (&*group.name, group.count, of(group))).collect()
}

/// Returns the sums of the spans.
fn spans(regions: &Regions) -> Vec<(&str, u64, [u64; 3])> {
    let is_span = |(name, count, _): &(&str, u64, _)| name.ends_with("request") && *count > 0;
    sums(regions).into_iter().filter(is_span).collect()
}

/// Events of a span. Thread a begins the span. Thread b polls the span, and then drops the span.
const MOVED: [(u64, u32, Of, u64); 7] = [
    (1_000, 0, BEGIN, 1),
    (1_100, 0, PollEnd, 1),
    (1_300, 1, PollBegin, 1),
    (1_600, 1, PollEnd, 1),
    (2_000, 1, PollBegin, 1),
    (2_010, 1, PollEnd, 1),
    (2_020, 1, PartedEnd, 1),
];

#[test]
fn a_span_that_moves_is_one_region_and_the_entry_at_its_drop_is_no_poll() {
    let regions = all(&made(&MOVED, 0));

    // No kernel says what the threads did in the polls.
    let request = ("request", 1, [1_020, 200 + 400 + 10, 100 + 300 + 10]);
    assert_eq!(sums(&regions), [("poll", 2, [400, 0, 400]), request]);
    let [child] = &regions.groups[1].children[..] else { panic!() };
    assert_eq!((child.name.as_deref(), child.count, child.duration_ns), (Some("poll"), 2, 400));
    // The time of the drop is busy time of the span itself.
    let own = &regions.groups[1].own.times;
    assert_eq!((own.total(), own.get(Part::Idle)), (620, 610));
    let polls = regions.samples().filter(|sample| sample.group == 0);
    let polls = polls.map(|poll| (poll.id, poll.client(), poll.duration_ns()));
    assert_eq!(Vec::from_iter(polls), [(1, Some(0), 100), (1, Some(1), 300)]);
}

#[test]
fn an_entry_that_is_not_left_directly_before_the_close_is_a_poll() {
    let mut events = MOVED.to_vec();
    events.insert(6, (2_015, 1, WorkBegin, 1));
    events.push((2_030, 1, WorkEnd, 1));

    let regions = all(&made(&events, 0));

    assert_eq!(sums(&regions)[0], ("poll", 3, [410, 0, 410]));
}

#[test]
fn a_span_is_divided_by_its_polls_also_if_these_are_not_shown() {
    let select = Select::Names(vec!["request".into()]);
    let made = made(&MOVED, 0);
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();

    let regions = Regions::of(&recording, &Options { select, ..Options::default() }).unwrap();

    assert_eq!(sums(&regions), [("request", 1, [1_020, 610, 410])]);
    assert_eq!(regions.left_out, [0; LeftOut::ALL.len()]);
}

#[test]
fn a_span_of_one_entry_is_an_ordinary_region_whatever_is_known_of_its_exit() {
    for exit in [&[][..], &[(1_300, 0, PollEnd, 1)]] {
        let mut events = vec![
            (900, 0, WorkBegin, 7),
            (1_000, 0, BEGIN, 1),
            (1_100, 0, WorkBegin, 2),
            (1_200, 0, WorkEnd, 2),
        ];
        events.extend(exit);
        events.extend([(1_310, 0, End, 1), (1_400, 0, WorkEnd, 7)]);

        let regions = all(&made(&events, 0));

        let expected = [("request", 1, [310, 0, 310]), ("work", 2, [600, 0, 600])];
        assert_eq!(sums(&regions), expected, "{exit:?}");
        let children = |group: usize| {
            let children = regions.groups[group].children.iter();
            Vec::from_iter(children.map(|child| (child.name.as_deref().unwrap(), child.count)))
        };
        assert_eq!((children(0), children(1)), (vec![("work", 1)], vec![("request", 1)]));
        assert!(regions.samples().all(|sample| sample.client() == Some(0)));
    }
}

#[test]
fn regions_inside_a_poll_are_its_children() {
    let mut events = MOVED.to_vec();
    events.splice(1..1, [(1_010, 0, WorkBegin, 5), (1_020, 0, WorkEnd, 5)]);
    events.splice(5..5, [(1_400, 1, WorkBegin, 6), (1_500, 1, WorkEnd, 6)]);

    let regions = all(&made(&events, 0));

    let [child] = &regions.groups[0].children[..] else { panic!() };
    assert_eq!((child.name.as_deref(), child.count, child.duration_ns), (Some("work"), 2, 110));
}

#[test]
fn of_two_polls_at_once_the_first_is_the_time_of_the_span() {
    let events = [
        (1_000, 0, BEGIN, 1),
        (1_100, 0, PollEnd, 1),
        (1_200, 0, PollBegin, 1),
        (1_300, 1, PollBegin, 1),
        (1_500, 0, PollEnd, 1),
        (1_900, 1, PollEnd, 1),
        (2_000, 0, PartedEnd, 1),
    ];

    let made = made(&events, 0);
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    for has_paths in [false, true] {
        let options = Options { has_paths, ..Options::default() };

        let regions = Regions::of(&recording, &options).unwrap();

        let expected = [("poll", 3, [1_000, 0, 1_000]), ("request", 1, [1_000, 200, 800])];
        assert_eq!(sums(&regions), expected);
        let total = &regions.groups[1].total;
        assert_eq!(regions.groups[1].own.times.get(Part::Unknown), 400);
        let steps: u64 = total.path.iter().map(|step| step.ns).sum();
        assert_eq!(steps, if has_paths { total.duration_ns } else { 0 });
    }
}

#[test]
fn a_first_poll_whose_end_is_not_known_is_neither_busy_nor_idle() {
    let events = [
        (1_000, 0, BEGIN, 1),
        (1_300, 1, PollBegin, 1),
        (1_600, 1, PollEnd, 1),
        (2_000, 0, WorkBegin, 5),
        (2_010, 0, WorkEnd, 5),
        (2_020, 1, PartedEnd, 1),
    ];

    let regions = all(&made(&events, 0));

    // The thread's own events say that the thread left the span directly before the close, so no poll
    // remains.
    assert_eq!(sums(&regions), [("request", 1, [1_020, 420, 600]), ("work", 1, [10, 0, 10])]);
}

#[test]
fn a_span_that_is_entered_once_and_closed_on_another_thread_is_one_region() {
    let regions = all(&made(&[(1_000, 0, BEGIN, 1), (1_500, 1, PartedEnd, 1)], 0));

    assert_eq!(sums(&regions), [("request", 1, [500, 0, 500])]);
    assert_eq!(counts(&regions), (1, vec![]));
}

#[test]
fn a_span_that_is_never_closed_has_no_end() {
    for polls in [0, 1, 3] {
        let regions = all(&made(&MOVED[..1 + polls], 0));
        let group = regions.groups.iter().find(|group| group.name == "request").unwrap();
        assert_eq!((group.count, group.not_counted[0]), (0, 1), "{polls}");
    }
}

#[test]
fn no_time_of_a_span_over_lost_events_is_idle() {
    let known = ("request", 1, [1_020, 610, 410]);
    let unknown = ("request", 1, [1_020, 0, 1_020]);
    // Thread a loses events at the first time, and has its next event at the second time. The times are
    // before, in and after the span.
    for (gap, next, expected) in [
        (500, Some(900), known),
        (500, Some(1_350), unknown),
        (500, Some(3_000), unknown),
        (500, None, unknown),
        (1_350, Some(1_400), unknown),
        (1_350, Some(3_000), unknown),
        (3_000, Some(3_100), known),
    ] {
        let next = next.map(|time| (time, 0, WorkBegin, 5));
        let mut events = Vec::from_iter(MOVED.map(|(time, _, of, id)| (time, 1, of, id)));
        events.extend([(gap, 0, WorkBegin, 4), (gap, 0, WorkEnd, 4), (gap, 0, Gap, 3)]);
        events.extend(next);
        events.sort_by_key(|(time, ..)| *time);

        let regions = all(&made(&events, 0));

        assert_eq!(spans(&regions), [expected], "{gap} {next:?}");
    }
}

#[test]
fn the_critical_path_of_a_span_over_lost_events_has_no_idle_time() {
    let [a, b] = THREADS;
    let mut cpus = Cpus::new(2, &THREADS);
    cpus.switch(0, READY, a).at(5_000).switch(0, ASLEEP, (300, "other"));
    cpus.at(7_000).timer(1, 8, b).at(7_200).switch(1, READY, b);
    cpus.at(12_000).switch(1, ASLEEP, (300, "other"));
    // The gap is after the first poll, or in the first poll. If the gap is in the poll, then the poll may
    // have been several polls.
    for (gap, first, unknown) in [(4_100, 1_000, 4_600), (3_500, 0, 5_600)] {
        let mut events = vec![
            (3_000, 0, BEGIN, 1),
            (gap, 0, Gap, 3),
            (4_000, 0, PollEnd, 1),
            (8_000, 1, PollBegin, 1),
            (10_000, 1, PollEnd, 1),
            (10_600, 1, PartedEnd, 1),
        ];
        events.sort_by_key(|(time, ..)| *time);
        let made = made(&events, 0);
        made.kernel(&cpus.trace());

        let regions = read(&made, &Options { has_paths: true, ..Options::default() });

        let request = regions.groups.iter().find(|group| group.name == "request").unwrap();
        let steps = |part| {
            let of_part = request.total.path.iter().filter(move |step| step.part == part);
            of_part.map(|step| step.ns).sum::<u64>()
        };
        assert_eq!([Part::OnCpu, Part::Unknown].map(steps), [first + 2_000, unknown], "{gap}");
        let times = [Part::OnCpu, Part::Unknown].map(|part| request.total.times.get(part));
        assert_eq!(times, [first + 2_000, unknown], "{gap}");
    }
}

#[test]
fn losses_of_a_session_are_not_those_of_another() {
    let lossy = made(&[(1_350, 0, WorkBegin, 1)], 3);
    let sessions = [made(&MOVED, 0), lossy];
    let recording = Recording::open(&sessions.each_ref().map(|of| Given::new(of.path()))).unwrap();

    let regions = Regions::of(&recording, &Options::default()).unwrap();

    assert_eq!(spans(&regions), [("request", 1, [1_020, 610, 410])]);
}

#[test]
fn losses_of_a_process_are_not_those_of_another() {
    let mut events = MOVED.to_vec();
    events.push((500, OTHER, Gap, 3));
    events.sort_by_key(|(time, ..)| *time);

    assert_eq!(spans(&all(&made(&events, 0))), [("request", 1, [1_020, 610, 410])]);
}

#[test]
fn a_span_whose_process_takes_over_a_client_that_loses_events_is_not_counted() {
    let mut events = Vec::from_iter(MOVED.map(|(time, _, of, id)| (time, OTHER, of, id)));
    events.extend([(500, 0, Gap, 3), (3_000, 0, Lease, 51)]);
    events.sort_by_key(|(time, ..)| *time);

    let regions = all(&made(&events, 0));

    let request = regions.groups.iter().find(|group| group.name == "request").unwrap();
    assert_eq!((request.count, request.not_counted[NotCounted::LostEvents as usize]), (0, 1));
}

#[test]
fn spans_that_ended_before_their_threads_events_were_overwritten_are_not_counted() {
    let mut events = Vec::from_iter(MOVED.map(|(time, _, of, id)| (time, 1, of, id)));
    events.extend(MOVED.map(|(time, _, of, id)| (time + 10_000, 1, of, id + 1)));
    events.extend([(4_000, 0, Overwritten, 3), (5_000, 0, WorkBegin, 5), (5_010, 0, WorkEnd, 5)]);
    events.sort_by_key(|(time, ..)| *time);
    let made = made(&events, 0);
    let path = made.path().join("session.json");
    let json = std::fs::read_to_string(&path).unwrap();
    let streams = r#""streams":[{"domain":"guest","client":0,"lost_overwritten":3}]"#;
    std::fs::write(path, json.replacen(r#""streams":[]"#, streams, 1)).unwrap();

    let regions = all(&made);

    let request = regions.groups.iter().find(|group| group.name == "request").unwrap();
    assert_eq!(request.not_counted[NotCounted::LostEvents as usize], 1);
    assert_eq!(spans(&regions), [("request", 1, [1_020, 610, 410])]);
}

#[test]
fn a_session_that_lost_events_of_threads_without_a_ring_has_no_idle_time() {
    let made = made(&MOVED, 0);
    let path = made.path().join("session.json");
    let json = std::fs::read_to_string(&path).unwrap();
    let lost = r#""lost_unattached":1,"streams""#;
    std::fs::write(path, json.replacen(r#""streams""#, lost, 1)).unwrap();

    assert_eq!(spans(&all(&made)), [("request", 1, [1_020, 0, 1_020])]);
}

#[test]
fn a_poll_during_which_the_kernel_lost_events_is_unknown_time_of_its_span() {
    let [a, b] = THREADS;
    let mut cpus = Cpus::new(1, &THREADS);
    cpus.switch(0, READY, a).at(4_000).switch(0, READY, b).at(4_100).switch(0, READY, a);
    cpus.at(7_000).switch(0, READY, b).at(7_500).switch(0, READY, a);
    cpus.at(9_000).switch(0, READY, b).at(9_500).switch(0, READY, a);
    cpus.at(20_000).switch(0, READY, b);
    let events = [
        (2_000, 0, BEGIN, 1),
        (3_000, 0, PollEnd, 1),
        (6_000, 0, PollBegin, 1),
        (8_000, 0, PollEnd, 1),
        (12_000, 0, PollBegin, 1),
        (13_000, 0, PollEnd, 1),
        (14_000, 0, PartedEnd, 1),
    ];
    for select in [Select::Names(vec![]), Select::Names(vec!["request".into()])] {
        let made = made(&events, 0);
        // The thread is away during the loss.
        made.kernel(
            &cpus.trace_without(|_, _, number| (3..5).contains(&number).then_some(Counted(true))),
        );

        let regions = read(&made, &Options { select, ..Options::default() });

        let request = regions.groups.iter().find(|group| group.name == "request").unwrap();
        let parts = [Part::OnCpu, Part::Idle, Part::Unknown];
        let times = parts.map(|part| request.total.times.get(part));
        assert_eq!(times, [2_000, 3_000 + 4_000 + 1_000, 2_000]);
    }
}

#[test]
fn a_span_of_a_process_has_no_events_of_another() {
    let mut events = MOVED.to_vec();
    events.extend([
        (1_010, OTHER, BEGIN, 1),
        (1_020, OTHER, PollEnd, 1),
        (1_030, OTHER, PollBegin, 1),
        (1_700, OTHER, PollEnd, 1),
        (1_710, OTHER, PartedEnd, 1),
        (1_720, OTHER, PollBegin, 1),
        (1_730, OTHER, PollEnd, 1),
        (1_740, OTHER, PartedEnd, 1),
    ]);

    let regions = all(&made(&events, 0));

    let of_other = [700, 20, 680];
    assert_eq!(
        spans(&regions),
        [("app::request", 2, [1_020 + of_other[0], 610 + of_other[1], 410 + of_other[2]])]
    );
    assert_eq!(counts(&regions).1, [("end_without_begin", 1)]);
}

#[test]
fn two_thousand_spans_without_polls_are_open_at_once() {
    for end in [End, PartedEnd] {
        let client = u32::from(end == PartedEnd);
        let begin = (0..2_000).map(|n| (1_000 + n, 0, BEGIN, n));
        let end = (0..2_000).map(|n| (50_000 + n, client, end, n));

        let regions = all(&made(&Vec::from_iter(begin.chain(end)), 0));

        assert_eq!(sums(&regions), [("request", 2_000, [98_000_000, 0, 98_000_000])]);
        assert_eq!(counts(&regions), (2_000, vec![]));
    }
}

#[test]
fn the_open_spans_of_a_session_leave_room_for_those_of_another() {
    let many = Vec::from_iter(
        (0..40_000).flat_map(|n| [(500 + n / 100, 0, BEGIN, n), (500 + n / 100, 0, PollEnd, n)]),
    );
    let sessions = [made(&MOVED, 0), made(&many, 0)];
    let recording = Recording::open(&sessions.each_ref().map(|of| Given::new(of.path()))).unwrap();

    let regions = Regions::of(&recording, &Options::default()).unwrap();

    assert_eq!(spans(&regions)[0], ("request", 1, [1_020, 610, 410]));
    let mut texts = regions.warnings.iter().map(|warning| warning.to_string());
    assert!(texts.any(|text| text.contains("the 7,232 oldest")));
}

#[test]
fn ten_thousand_spans_of_one_thread_are_open_at_once() {
    let begin =
        (0..10_000).flat_map(|n| [(1_000 + 2 * n, 0, BEGIN, n), (1_001 + 2 * n, 0, PollEnd, n)]);
    let end = (0..10_000).map(|n| (50_000 + n, 1, PartedEnd, n));

    let regions = all(&made(&Vec::from_iter(begin.chain(end)), 0));

    assert_eq!(counts(&regions), (20_000, vec![]));
}

#[test]
fn spans_of_one_name_and_two_targets_are_two_groups() {
    let mut events = MOVED.to_vec();
    let other = Begin("app::other");
    events.extend([
        (3_000, 0, other, 2),
        (3_100, 0, End, 2),
        (3_200, 0, other, 3),
        (3_300, 0, End, 3),
    ]);

    let regions = all(&made(&events, 0));

    let names = regions.groups.iter().map(|group| (&*group.name, group.count));
    let expected = [("app::other::request", 2), ("app::request", 1), ("poll", 2)];
    assert_eq!(Vec::from_iter(names), expected);
}

#[test]
fn spans_of_one_long_target_are_one_group() {
    let target = Begin("x".repeat(120).leak());
    let events = [(1_000, target, 1), (1_100, End, 1), (1_200, target, 2), (1_300, End, 2)];

    let regions = all(&made(&events.map(|(time, of, id)| (time, 0, of, id)), 0));

    assert_eq!(sums(&regions), [("request", 2, [200, 0, 200])]);
}

#[test]
fn a_region_of_any_client_with_the_fields_of_a_span_is_none() {
    let regions = all(&made(&[(1_000, 0, CallBegin, 1), (1_500, 1, CallEnd, 1)], 0));

    assert_eq!(sums(&regions), [("call", 1, [500, 0, 500])]);
    assert_eq!(counts(&regions), (1, vec![]));
}

#[test]
fn a_span_with_the_name_of_the_polls_is_told_from_them() {
    let made = made_of(&EVENTS.replace("request", "poll"), &MOVED, 0);

    let regions = all(&made);

    let expected = [("app::poll", 1, [1_020, 610, 410]), ("poll", 2, [400, 0, 400])];
    assert_eq!(sums(&regions), expected);
    assert_eq!(counts(&regions), (3, vec![]));
}

#[test]
fn a_poll_that_lost_its_end_leaves_the_thread_in_the_span_once() {
    let mut events = MOVED[..4].to_vec();
    events.insert(3, (1_400, 1, PollBegin, 1));
    events.push((2_020, 1, PartedEnd, 1));

    let regions = all(&made(&events, 0));

    assert_eq!(sums(&regions)[1], ("request", 1, [1_020, 200 + 420, 400]));
}

#[test]
fn a_thread_leaves_a_span_also_where_its_poll_is_no_longer_waited_for() {
    let mut events = MOVED[..3].to_vec();
    events.extend((0..1_100).map(|id| (1_400, 1, WorkBegin, id)));
    events.extend([(1_600, 1, PollEnd, 1), (2_020, 1, PartedEnd, 1)]);

    let regions = all(&made(&events, 0));

    let request = regions.groups.iter().find(|group| group.name == "request").unwrap();
    assert_eq!(request.total.times.get(Part::Idle), 200 + 420);
}

#[test]
fn spans_that_never_end_leave_room_for_later_ones() {
    for has_polls in [false, true] {
        let mut events = Vec::new();
        for n in 0..70_000 {
            events.push((1_000 + n, 0, BEGIN, 100 + n));
            events.extend(has_polls.then_some((1_000 + n, 0, PollEnd, 100 + n)));
        }
        events.extend(MOVED.map(|(time, client, of, id)| (100_000 + time, client, of, id)));

        let regions = all(&made(&events, 0));

        assert_eq!(spans(&regions), [("request", 1, [1_020, 610, 410])]);
        assert_eq!(counts(&regions).1, [("begin_without_end", 70_000)]);
    }
}

#[test]
fn more_open_spans_than_are_kept_are_a_warning() {
    let events =
        (0..65_537).flat_map(|n| [(1_000 + 2 * n, 0, BEGIN, n), (1_001 + 2 * n, 0, PollEnd, n)]);

    let regions = all(&made(&Vec::from_iter(events), 0));

    let mut texts = regions.warnings.iter().map(|warning| warning.to_string());
    assert!(texts.any(|text| { text.contains("65,536 spans") && text.contains("the 1 oldest") }));
}

#[test]
fn a_number_that_begins_again_is_a_new_span() {
    let mut events = MOVED[..2].to_vec();
    events.extend([
        (3_000, 1, BEGIN, 1),
        (3_100, 1, PollEnd, 1),
        (3_200, 1, PollBegin, 1),
        (3_300, 1, PollEnd, 1),
        (3_400, 0, PartedEnd, 1),
    ]);

    let regions = all(&made(&events, 0));

    let polls = ("poll", 3, [300, 0, 300]);
    assert_eq!(sums(&regions), [polls, ("request", 1, [400, 200, 200])]);
    assert_eq!(counts(&regions), (4, vec![("id_twice", 1)]));
}

#[test]
fn polls_are_among_the_children_by_their_time() {
    let mut events = MOVED.to_vec();
    events.extend([
        (3_000, 0, BEGIN, 2),
        (3_010, 0, WorkBegin, 5),
        (3_020, 0, WorkEnd, 5),
        (3_100, 0, End, 2),
    ]);

    let regions = all(&made(&events, 0));

    let children = regions.groups[1].children.iter();
    let children = children.map(|child| (child.name.as_deref().unwrap(), child.duration_ns));
    assert_eq!(Vec::from_iter(children), [("poll", 400), ("work", 10)]);
}

#[test]
fn spans_that_were_not_recorded_are_a_warning() {
    let regions = all(&made(&[(1_000, 0, Lost, 0), (1_001, 1, Lost, 0)], 0));

    let text = regions.warnings.iter().map(|warning| warning.to_string());
    assert!(text.into_iter().any(|text| text.contains("2 spans of the crate tracing")));
}

#[test]
fn busy_time_has_the_parts_of_the_threads_that_poll_and_idle_time_ends_with_their_sleep() {
    let [a, b] = THREADS;
    let other = (300, "other");
    let mut cpus = Cpus::new(2, &THREADS);
    // Thread a polls first. Then a timer wakes b, which does something else before it polls.
    cpus.switch(0, READY, a).at(2_000).switch(1, READY, b).at(2_500).switch(
        1,
        ASLEEP,
        (0, "swapper"),
    );
    cpus.at(5_000).switch(0, ASLEEP, other);
    cpus.at(7_000).timer(1, 8, b).at(7_200).switch(1, READY, b);
    cpus.at(9_000).switch(1, READY, other).at(9_400).switch(1, READY, b);
    cpus.at(12_000).switch(1, ASLEEP, other);
    let events = [
        (3_000, 0, BEGIN, 1),
        (4_000, 0, PollEnd, 1),
        (8_000, 1, PollBegin, 1),
        (10_000, 1, PollEnd, 1),
        (10_500, 1, PollBegin, 1),
        (10_600, 1, PollEnd, 1),
        (10_600, 1, PartedEnd, 1),
    ];
    let made = made(&events, 0);
    made.kernel(&cpus.trace());
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();

    for has_paths in [false, true] {
        let regions =
            Regions::of(&recording, &Options { has_paths, ..Options::default() }).unwrap();

        let request = regions.groups.iter().find(|group| group.name == "request").unwrap();
        let total = &request.total;
        let parts = [Part::OnCpu, Part::Runnable, Part::Idle, Part::Unknown];
        let times = parts.map(|part| total.times.get(part));
        assert_eq!(times, [1_000 + 1_600 + 100, 400, 4_000 + 500, 0], "{has_paths}");
        let wait = total.waits.iter().map(|wait| (wait.part, wait.cause.to_string(), wait.ns));
        assert_eq!(Vec::from_iter(wait), [(Part::Runnable, "other-300".into(), 400)]);
        let step = |step: &PathStep| {
            let cause = step.cause.as_ref().map(|cause| cause.to_string());
            (step.thread.to_string(), step.part, cause, step.ns)
        };
        let mut steps = Vec::from_iter(total.path.iter().map(step));
        steps.sort_by_key(|(_, _, _, ns)| *ns);
        let timer = ("b-201".into(), Part::Blocked, Some("timer".into()), 3_000);
        let expected = vec![
            ("b-201".into(), Part::Runnable, None, 400),
            ("a-200".into(), Part::OnCpu, None, 1_000),
            // The unknown time is the time from the timer to the poll, and the time before the drop.
            ("not known".into(), Part::Unknown, Some("not known".into()), 1_500),
            ("b-201".into(), Part::OnCpu, None, 1_700),
            timer,
        ];
        assert_eq!(steps, if has_paths { expected } else { vec![] });
    }
}
