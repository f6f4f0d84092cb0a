//! Tests of the export of regions as spans: the tree, the times and the attributes of the spans, and a
//! collector that takes the spans.

use crate::collector::Collector;
use hypertrace_export::Error;
use hypertrace_export::otlp::{self, Counts};
use hypertrace_test_support::{made, wait_until};
use hypertrace_timeline::regions::Choice;
use hypertrace_timeline::{Given, Recording};
use made::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const OUTER_BEGIN: u32 = 16;
const OUTER_END: u32 = 17;
const INNER_BEGIN: u32 = 18;
const INNER_END: u32 = 19;
const REQUEST_BEGIN: u32 = 20;
const REQUEST_END: u32 = 21;
const ANY_BEGIN: u32 = 22;
const ANY_END: u32 = 23;
const EVENTS: &str = r#"[
    {"id":16,"schema":"outer_begin(id:u64,lba:u64)"},
    {"id":17,"schema":"outer_end(id:u64)"},
    {"id":18,"schema":"inner_begin(id:u64,text:str)"},
    {"id":19,"schema":"inner_end(id:u64)"},
    {"id":20,"schema":"request_begin(id:u64,traceparent:str)"},
    {"id":21,"schema":"request_end(id:u64)"},
    {"id":22,"schema":"any_begin(id:u64,any_client:bool)"},
    {"id":23,"schema":"any_end(id:u64,any_client:bool)"},
    {"id":24,"schema":"span_begin(id:u64,parent:u64,target:str)"},
    {"id":25,"schema":"span_end(id:u64,any_client:bool)"},
    {"id":26,"schema":"poll_begin(span:u64)"},
    {"id":27,"schema":"poll_end(span:u64)"},
    {"id":28,"schema":"call_begin(id:u64,parent:u64,any_client:bool,target:str)"},
    {"id":29,"schema":"call_end(id:u64,any_client:bool)"}
]"#;

/// Contexts of the span that called the session's process, and of a request's span.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
const REQUEST: &str = "00-11111111111111111111111111111111-2222222222222222-01";

/// Makes a session of a program. The region `outer` contains the region `inner` and two requests. Then
/// another thread leases the client.
fn session(parent: Option<&str>) -> Made {
    let first = Packet::new(1, 0, 0)
        .lease(1_000, 7, "server/worker\x1b")
        .event(2_000, OUTER_BEGIN, &[1, u64::MAX])
        .event_str(3_000, INNER_BEGIN, &[1], b"a\"\\\x1b[2J\xff</script>")
        .event(4_000, INNER_END, &[1])
        .event_str(5_000, REQUEST_BEGIN, &[2], REQUEST.as_bytes())
        .event_str(5_500, INNER_BEGIN, &[3], b"")
        .event(5_600, INNER_END, &[3])
        .event(6_000, REQUEST_END, &[2])
        .event_str(7_000, REQUEST_BEGIN, &[4], b"00-no")
        .event(8_000, REQUEST_END, &[4])
        .event(9_000, OUTER_END, &[1]);
    let second = Packet::new(1, 0, 0)
        .after(&first)
        .lease(10_000, 8, "other")
        .event_str(11_000, INNER_BEGIN, &[1], b"alone")
        .event(12_000, INNER_END, &[1])
        .event(13_000, OUTER_BEGIN, &[9, 1]);
    let made =
        Made::of_programs(EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), first, second]);
    if let Some(parent) = parent {
        let path = made.path().join("session.json");
        let json = fs::read_to_string(&path).unwrap();
        let member = format!("\"trace_parent\":\"{parent}\",\"clocks\"");
        fs::write(path, json.replacen("\"clocks\"", &member, 1)).unwrap();
    }
    made
}

/// Returns the requests of an export, and its counts.
fn requests(made: &Made, choice: Choice) -> (Vec<String>, Counts) {
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let mut texts = Vec::new();
    let counts = otlp::write(&recording, choice, &mut |text, _| {
        texts.push(text.to_owned());
        Ok::<(), Error>(())
    });
    (texts, counts.unwrap())
}

/// Returns the spans of requests, in their order.
fn spans(requests: &[String]) -> Vec<Value> {
    let mut spans = Vec::new();
    for request in requests {
        let request: Value = serde_json::from_str(request).unwrap();
        for resource in request["resourceSpans"].as_array().unwrap() {
            for scope in resource["scopeSpans"].as_array().unwrap() {
                spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
            }
        }
    }
    spans
}

/// Returns the attributes of a span or resource, by key.
fn attributes(of: &Value) -> BTreeMap<&str, &Value> {
    let all = of["attributes"].as_array().unwrap().iter();
    all.map(|one| {
        (one["key"].as_str().unwrap(), one["value"].as_object().unwrap().values().next().unwrap())
    })
    .collect()
}

fn text<'a>(span: &'a Value, key: &str) -> &'a str {
    span[key].as_str().unwrap_or_default()
}

/// Returns the name, the parent's name and the trace of each span.
fn tree(spans: &[Value]) -> Vec<(String, String, String)> {
    let names: BTreeMap<&str, &str> =
        spans.iter().map(|span| (text(span, "spanId"), text(span, "name"))).collect();
    let one = |span: &Value| {
        let parent = text(span, "parentSpanId");
        let parent = names.get(parent).copied().unwrap_or(parent);
        (text(span, "name").to_owned(), parent.to_owned(), text(span, "traceId").to_owned())
    };
    spans.iter().map(one).collect()
}

#[test]
fn spans_are_children_of_the_request_of_the_region_around_them_or_of_the_caller() {
    let (texts, counts) = requests(&session(Some(CALLER)), Choice::default());
    let spans = spans(&texts);

    let (caller, request) = (&CALLER[3..35], &REQUEST[3..35]);
    let expected = [
        ("outer", "00f067aa0ba902b7", caller),
        ("inner", "outer", caller),
        ("request", "2222222222222222", request),
        ("inner", "request", request),
        ("request", "outer", caller),
        ("inner", "00f067aa0ba902b7", caller),
    ];
    let expected = expected.map(|(name, parent, trace)| (name.into(), parent.into(), trace.into()));
    assert_eq!(tree(&spans), expected);
    // The caller did not sample its trace, but the request's trace was sampled.
    assert_eq!(spans.iter().map(|span| &span["flags"]).collect::<Vec<_>>(), [0, 0, 1, 1, 0, 0]);
    let link = json!([{"traceId": caller, "spanId": spans[0]["spanId"]}]);
    assert_eq!((&spans[2]["links"], &spans[3]["links"]), (&link, &Value::Null));
    assert_eq!((counts.spans, counts.not_counted, counts.bad_contexts), (6, 1, 1));
}

#[test]
fn without_a_caller_each_outermost_region_is_a_trace_and_ids_are_the_same_again() {
    let made = session(None);
    let (texts, _) = requests(&made, Choice::default());
    let spans = spans(&texts);

    assert_eq!(requests(&made, Choice::default()).0, texts, "a second export is the same");
    let ids: BTreeSet<&str> = spans.iter().map(|span| text(span, "spanId")).collect();
    assert_eq!(ids.len(), spans.len());
    for span in &spans {
        for (key, len) in [("spanId", 16), ("traceId", 32)] {
            let id = text(span, key);
            assert!(id.len() == len && u128::from_str_radix(id, 16).unwrap() != 0, "{span}");
        }
    }
    let roots: Vec<_> = spans.iter().filter(|span| span.get("parentSpanId").is_none()).collect();
    assert_eq!(roots.iter().map(|span| text(span, "name")).collect::<Vec<_>>(), ["outer", "inner"]);
    assert_ne!(roots[0]["traceId"], roots[1]["traceId"]);
    assert_eq!(spans[1]["traceId"], roots[0]["traceId"]);
    // Ids do not depend on which of the regions are chosen.
    let choice = Choice { from_ns: Some(START_NS + 2_500), ..Choice::default() };
    let (some, counts) = requests(&made, choice);
    assert_eq!(self::spans(&some)[0]["spanId"], spans[1]["spanId"]);
    assert_eq!(counts.left_out, 1);
}

#[test]
fn a_span_has_its_times_its_parts_and_the_fields_of_its_begin() {
    let (texts, _) = requests(&session(None), Choice::default());
    let spans = spans(&texts);

    let inner = &spans[1];
    assert_eq!((&inner["kind"], &inner["name"]), (&json!(1), &json!("inner")));
    assert_eq!(inner["startTimeUnixNano"], (START_NS + 3_000).to_string());
    assert_eq!(inner["endTimeUnixNano"], (START_NS + 4_000).to_string());
    let of = attributes(inner);
    assert_eq!(of["text"], "a\"\\\x1b[2J\u{fffd}</script>");
    assert_eq!((of["hypertrace.region.id"], of["hypertrace.client"]), (&json!("1"), &json!("0")));
    assert_eq!(of["hypertrace.unknown_ns"], "1000");
    assert_eq!((of["thread.id"], of["thread.name"]), (&json!("43"), &json!("server/worker\x1b")));
    assert_eq!(
        (of["hypertrace.begin_bound_ns"], of["hypertrace.duration_bound_ns"]),
        (&json!("0"), &json!("0"))
    );
    assert!(!of.contains_key("id"));
    assert_eq!(attributes(&spans[0])["lba"], "18446744073709551615", "no number of OTLP");
    assert!(!attributes(&spans[2]).contains_key("traceparent"));
    assert_eq!(attributes(&spans[4])["traceparent"], "00-no", "it is no context");
    // Control characters are escaped.
    assert!(texts.iter().all(|text| !text.contains(|c: char| c.is_control())));
    let request: Value = serde_json::from_str(&texts[0]).unwrap();
    let resources = request["resourceSpans"].as_array().unwrap();
    let names: Vec<_> =
        resources.iter().map(|of| attributes(&of["resource"])["service.name"].clone()).collect();
    assert_eq!(names, ["server", "other"]);
    assert_eq!(attributes(&resources[0]["resource"])["hypertrace.session"], UUID_TEXT);
    assert_eq!(resources[0]["scopeSpans"][0]["scope"]["name"], "hypertrace");
}

#[test]
fn a_region_of_any_client_is_in_no_other_and_around_none() {
    let begins = Packet::new(1, 0, 0)
        .lease(1_000, 7, "a")
        .event(2_000, OUTER_BEGIN, &[1, 0])
        .event(3_000, ANY_BEGIN, &[1, 1])
        .event_str(4_000, INNER_BEGIN, &[1], b"")
        .event(5_000, INNER_END, &[1])
        .event(9_000, OUTER_END, &[1]);
    let ends = Packet::new(1, 1, 0).lease(1_000, 8, "b").event(8_000, ANY_END, &[1, 1]);
    let made = Made::of_programs(EVENTS)
        .stream("guest-000-0000", &[Packet::new(1, 0, 0), begins])
        .stream("guest-001-0000", &[Packet::new(1, 1, 0), ends]);

    let (texts, counts) = requests(&made, Choice::default());

    let spans = spans(&texts);
    let tree = tree(&spans).into_iter().map(|(name, parent, _)| (name, parent));
    let expected = [("outer", ""), ("any", ""), ("inner", "outer")];
    let expected = expected.map(|(name, parent)| (name.to_owned(), parent.to_owned()));
    assert_eq!(tree.collect::<Vec<_>>(), expected);
    assert_eq!((counts.spans, &attributes(&spans[1])["hypertrace.client"]), (3, &&json!("0")));
    assert!(!attributes(&spans[1]).contains_key("any_client"));
}

#[test]
fn a_span_of_tracing_is_one_span_in_the_span_that_it_names_with_its_polls_as_events() {
    let (begin, end, poll_begin, poll_end) = (24, 25, 26, 27);
    let first = Packet::new(1, 0, 0)
        .lease(1_000, 7, "a")
        .event_str(2_000, begin, &[1, 0], b"app")
        .event_str(2_100, begin, &[2, 1], b"app")
        .event(2_200, poll_end, &[2])
        .event(2_300, poll_end, &[1]);
    let second = Packet::new(1, 1, 0)
        .lease(1_000, 8, "b")
        .event(3_000, poll_begin, &[2])
        .event(3_100, INNER_BEGIN, &[9, 0])
        .event(3_200, INNER_END, &[9])
        .event(3_300, poll_end, &[2])
        .event(3_310, poll_begin, &[2])
        .event(3_320, poll_end, &[2])
        .event(3_400, end, &[2, 1])
        .event(3_500, end, &[1, 1]);
    let made = Made::of_programs(EVENTS)
        .stream("guest-000-0000", &[Packet::new(1, 0, 0), first])
        .stream("guest-001-0000", &[Packet::new(1, 1, 0), second]);

    let (texts, counts) = requests(&made, Choice::default());

    let spans = spans(&texts);
    let tree = tree(&spans).into_iter().map(|(name, parent, _)| (name, parent));
    let expected = [("span", ""), ("span", "span"), ("inner", "span")];
    let expected = expected.map(|(name, parent)| (name.to_owned(), parent.to_owned()));
    assert_eq!(Vec::from_iter(tree), expected);
    let traces = BTreeSet::from_iter(spans.iter().map(|span| span["traceId"].as_str().unwrap()));
    assert_eq!((counts.spans, traces.len()), (3, 1));
    assert_eq!(spans[2]["parentSpanId"], spans[1]["spanId"]);
    let events = spans[1]["events"].as_array().unwrap();
    let polls = events.iter().map(|event| (&event["name"], attributes(event)["duration_ns"]));
    let (poll, durations) = (json!("poll"), ["100", "300"].map(Value::from));
    assert_eq!(Vec::from_iter(polls), [(&poll, &durations[0]), (&poll, &durations[1])]);
    assert_eq!(attributes(&spans[1])["hypertrace.idle_ns"], "890");
    assert!(!attributes(&spans[1]).contains_key("parent"));
}

#[test]
fn a_span_of_tracing_is_in_no_span_of_another_process() {
    let (begin, end) = (24, 25);
    let own = Packet::new(1, 0, 0)
        .lease(1_000, 7, "a")
        .event_str(2_000, begin, &[1, 0], b"app")
        .event_str(2_200, begin, &[2, 1], b"app")
        .event(2_300, end, &[2, 1])
        .event(2_400, end, &[1, 1]);
    // Another process uses the same span number as the first process, at times between the first process's
    // events.
    let other = Packet::new(1, 1, 0)
        .with64(80, 8)
        .event_str(1_000, 1, &[8, 51, 52, 0], b"other")
        .event_str(2_100, begin, &[1, 0], b"app")
        .event(2_150, end, &[1, 1]);
    let made = Made::of_programs(EVENTS)
        .stream("guest-000-0000", &[Packet::new(1, 0, 0), own])
        .stream("guest-001-0000", &[Packet::new(1, 1, 0), other]);

    let spans = spans(&requests(&made, Choice::default()).0);

    let of = |from: i64| {
        let from = (START_NS + from).to_string();
        spans.iter().find(|span| span["startTimeUnixNano"] == from).unwrap()
    };
    assert_eq!(of(2_200)["parentSpanId"], of(2_000)["spanId"]);
    assert_ne!(of(2_100)["traceId"], of(2_000)["traceId"]);
}

#[test]
fn a_long_span_remains_the_parent_of_all_spans_inside() {
    let (begin, end, poll_end) = (24, 25, 27);
    let mut packets = vec![Packet::new(1, 0, 0)];
    let first = Packet::new(1, 0, 0).lease(1_000, 7, "server");
    let mut packet = first.event_str(2_000, begin, &[1, 0], b"app").event(2_001, poll_end, &[1]);
    for number in 0..70_000 {
        let (time, id) = (3_000 + 10 * number, 2 + number);
        packet = packet.event_str(time, begin, &[id, 1], b"app").event(time + 5, end, &[id, 1]);
        if number % 10_000 == 9_999 {
            packets.push(packet);
            packet = Packet::new(1, 0, 0).after(&packets[packets.len() - 1]);
        }
    }
    packets.push(packet.event(1_000_000, end, &[1, 1]));
    let made = Made::of_programs(EVENTS).stream("guest-000-0000", &packets);

    let spans = spans(&requests(&made, Choice::default()).0);

    assert_eq!(spans.len(), 70_001);
    let parent = &spans[0]["spanId"];
    assert!(spans[1..].iter().all(|span| span["parentSpanId"] == *parent));
}

#[test]
fn polls_of_a_span_are_no_events_of_a_span_of_another_process() {
    let (begin, end, poll_begin, poll_end) = (24, 25, 26, 27);
    let span = |packet: Packet, from: u64, polls: u64| {
        let packet = packet.event_str(from, begin, &[1, 0], b"app").event(from + 5, poll_end, &[1]);
        let packet = (1..polls).fold(packet, |packet, poll| {
            let time = from + 10 * poll;
            packet.event(time, poll_begin, &[1]).event(time + 5, poll_end, &[1])
        });
        packet.event_str(from + 90, INNER_BEGIN, &[9], b"").event(from + 91, INNER_END, &[9]).event(
            from + 100,
            end,
            &[1, 1],
        )
    };
    let own = span(Packet::new(1, 0, 0).lease(1_000, 7, "a"), 2_000, 2);
    // A later span of the same process has the same id, too.
    let own = span(own, 5_000, 4);
    let other = Packet::new(1, 1, 0).with64(80, 8).event_str(1_000, 1, &[8, 51, 52, 0], b"other");
    let made = Made::of_programs(EVENTS)
        .stream("guest-000-0000", &[Packet::new(1, 0, 0), own])
        .stream("guest-001-0000", &[Packet::new(1, 1, 0), span(other, 2_010, 3)]);

    let spans = spans(&requests(&made, Choice::default()).0);

    let polls = spans.iter().filter(|span| span["name"] == "span");
    let polls = polls.map(|span| {
        (span["startTimeUnixNano"].as_str().unwrap(), span["events"].as_array().unwrap().len())
    });
    let by_begin = BTreeMap::from_iter(polls);
    assert_eq!(Vec::from_iter(by_begin.into_values()), [2, 3, 4]);
}

#[test]
fn a_region_of_any_client_with_the_fields_of_a_span_of_tracing_is_none() {
    let packet = Packet::new(1, 0, 0)
        .lease(1_000, 7, "a")
        .event_str(2_000, 28, &[1, 5, 1], b"app")
        .event(3_000, 29, &[1, 1]);
    let made = Made::of_programs(EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);

    let spans = spans(&requests(&made, Choice::default()).0);

    assert_eq!(attributes(&spans[0])["parent"], "5");
}

#[test]
fn of_regions_that_begin_and_end_together_the_first_is_around_the_others() {
    let packet = Packet::new(1, 0, 0)
        .lease(1_000, 7, "server")
        .event(2_000, OUTER_BEGIN, &[1, 0])
        .event_str(2_000, INNER_BEGIN, &[2], b"")
        .event_str(2_000, REQUEST_BEGIN, &[3], b"")
        .event(3_000, REQUEST_END, &[3])
        .event(3_000, INNER_END, &[2])
        .event(3_000, OUTER_END, &[1]);
    let made = Made::of_programs(EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);

    let (texts, _) = requests(&made, Choice::default());

    let tree = tree(&spans(&texts));
    let parents = tree.iter().map(|(name, parent, _)| (&**name, &**parent));
    assert_eq!(Vec::from_iter(parents), [("outer", ""), ("inner", "outer"), ("request", "inner")]);
}

#[test]
fn of_a_long_name_a_span_has_the_beginning() {
    let packet = Packet::new(1, 0, 0)
        .lease(1_000, 7, &"\x01".repeat(10_000))
        .event(2_000, OUTER_BEGIN, &[1, 2])
        .event(3_000, OUTER_END, &[1]);
    let made = Made::of_programs(EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);

    let (texts, _) = requests(&made, Choice::default());

    let spans = spans(&texts);
    assert_eq!(attributes(&spans[0])["thread.name"], &json!("\x01".repeat(64)));
    assert!(texts[0].len() < 4096, "{}", texts[0].len());
}

#[test]
fn many_regions_at_one_time_and_with_one_id_are_all_there_in_bounded_requests() {
    const COUNT: u64 = 3_000;
    let mut packet = Packet::new(1, 0, 0).lease(1_000, 7, "w");
    for _ in 0..COUNT {
        packet =
            packet.event_str(2_000, INNER_BEGIN, &[1], &[1; 2_000]).event(2_000, INNER_END, &[1]);
    }
    let made = Made::of_programs(EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);

    let (texts, counts) = requests(&made, Choice::default());

    let spans = spans(&texts);
    let ids: BTreeSet<&str> = spans.iter().map(|span| text(span, "spanId")).collect();
    assert_eq!((counts.spans, spans.len() as u64, ids.len() as u64), (COUNT, COUNT, COUNT));
    assert!(texts.iter().all(|text| text.len() <= 1 << 20));
    assert!(texts.len() as u64 > (COUNT * 12_000) >> 20, "{}", texts.len());
}

#[test]
fn a_collector_takes_the_spans_and_refuses_broken_ones() {
    let Some(collector) = Collector::start() else { return };
    let (texts, counts) = requests(&session(Some(CALLER)), Choice::default());

    for text in &texts {
        collector.post(text).unwrap();
    }

    wait_until("all spans are in the log", || collector.log().matches("Span #").count() == 6);
    assert_eq!(counts.spans, 6);
    let log = collector.log();
    for expected in [CALLER[3..35].to_owned(), format!("Start time: {}", START_NS + 2_000)] {
        assert!(log.contains(&expected), "{log}");
    }
    for (right, wrong) in [
        ("\"traceId\":\"4bf9", "\"traceId\":\"xyz9"),
        ("\"kind\":1", "\"kind\":\"internal\""),
        ("\"startTimeUnixNano\":\"", "\"startTimeUnixNano\":\"x"),
    ] {
        assert!(texts[0].contains(right));
        let why = collector.post(&texts[0].replacen(right, wrong, 1)).unwrap_err();
        assert!(why.contains(" answered 400"), "{wrong}: {why}");
    }
}
