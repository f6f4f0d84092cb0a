//! Events and spans of the crates `log` and `tracing` in the traces of a program and of a VMM, as babeltrace2
//! and `hypertrace` show them.

use crate::run::fork;
use hypertrace_tests::child;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use hypertrace_log::{Logger, MESSAGE_BYTES};
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::report::Line;
use hypertrace_tests::{babeltrace2, this_test, traced};
use hypertrace_trace::{Session, SessionConfig};
use hypertrace_tracing::{HypertraceLayer, counts};
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing::{Dispatch, Instrument, debug, debug_span, error, info, info_span, warn};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn guest() -> Dispatch {
    tracing_subscriber::registry().with(HypertraceLayer::guest()).into()
}

fn host() -> Dispatch {
    tracing_subscriber::registry().with(HypertraceLayer::host()).into()
}

/// Records the calling test, named `test`, as a traced program that executes `body`. Returns the session;
/// `None` in the program.
fn program(test: &str, body: impl FnOnce()) -> Option<TempDir> {
    if traced::argument().is_some() {
        body();
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    command.arg(dir.path());
    traced::program(&mut command, test, "traced");
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    Some(dir)
}

/// Returns the events of a session without leases, as `report` shows them. babeltrace2 has to read as many
/// events.
#[track_caller]
fn events(dir: &Path) -> Vec<Line> {
    let text = run(HYPERTRACE.command(["report", "--json"]).arg(dir)).ok();
    let all: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    if let Some(read) = babeltrace2::read(&dir.join("ctf")) {
        assert_eq!(read.clean(), all.len() as u64);
    }
    all.into_iter().filter(|line| line.event != "lease").collect()
}

fn names(events: &[Line]) -> Vec<&str> {
    events.iter().map(|line| &*line.event).collect()
}

/// Returns the groups of `regions`, by name.
fn regions(dir: &Path, args: &[&str]) -> BTreeMap<String, Value> {
    let Ran { code, stdout, stderr } =
        run(HYPERTRACE.command(["regions", "--json"]).arg(dir).args(args));
    assert_eq!(code, Some(0), "{stderr}");
    let all: Value = serde_json::from_str(&stdout).unwrap();
    let groups = all["regions"].as_array().unwrap().iter();
    groups.map(|group| (group["name"].as_str().unwrap().to_owned(), group.clone())).collect()
}

#[test]
fn a_span_is_exported_with_its_fields_inside_the_one_around_it() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            let _outer = info_span!("outer", bytes = 512u64).entered();
            info_span!("inner", path = "/x", ratio = 0.5, done = true).in_scope(|| ());
        });
    }) else {
        return;
    };

    let mut export = HYPERTRACE.command(["export", "--to", "otlp", "-o", "-"]);
    let request: Value = run(export.arg(dir.path())).json();

    let spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    let [outer, inner] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&outer["name"], &inner["name"]), (&json!("outer"), &json!("inner")));
    assert_eq!(inner["parentSpanId"], outer["spanId"]);
    let field = |span: &Value, key: &str| {
        let mut all = span["attributes"].as_array().unwrap().iter();
        all.find(|attribute| attribute["key"] == key).unwrap()["value"].clone()
    };
    assert_eq!(field(outer, "bytes"), json!({"intValue": "512"}));
    assert_eq!(field(inner, "path"), json!({"stringValue": "/x"}));
    assert_eq!(field(inner, "ratio"), json!({"doubleValue": 0.5}));
    assert_eq!(field(inner, "done"), json!({"boolValue": true}));
}

#[test]
fn a_span_is_a_region_with_typed_fields() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            let span = info_span!(
                "http.request",
                bytes = 512u64,
                offset = -3i64,
                load = 0.5,
                cached = true,
                path = "/index",
                peer = ?[1u8, 2],
                id = 9u64,
                status = tracing::field::Empty,
            );
            span.in_scope(|| ());
            span.record("status", 200u64);
        });
    }) else {
        return;
    };

    let events = events(dir.path());

    // When the program leaves the first span of a call site, the session gets a `poll_end`, because the
    // program may enter the span again.
    let expected = ["http_request_begin", "poll_end", "http_request_record", "http_request_end"];
    assert_eq!(names(&events), expected);
    let id = events[0].fields["id"].clone();
    let begin = json!({
        "id": id, "parent": 0, "bytes": 512, "offset": -3, "load": 0.5, "cached": true,
        "path": "/index", "peer": "[1, 2]", "id_": 9, "target": module_path!(),
    });
    assert_eq!(Value::Object(events[0].fields.clone()), begin);
    assert_eq!(Value::Object(events[1].fields.clone()), json!({ "span": id }));
    assert_eq!(Value::Object(events[2].fields.clone()), json!({ "id": id, "status": 200 }));
    assert_eq!(Value::Object(events[3].fields.clone()), json!({ "id": id }));
    assert_eq!(regions(dir.path(), &[])["http_request"]["count"], 1);
    let by = run(HYPERTRACE.command(["regions", "--csv", "--by", "path"]).arg(dir.path()));
    assert!(by.stdout.contains("http_request,/index,"), "{by:?}");
}

/// Polls a future once. The waker does nothing.
fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Future that is pending `times` times.
async fn pending(times: u32) {
    for _ in 0..times {
        let mut is_pending = true;
        std::future::poll_fn(|_| match std::mem::take(&mut is_pending) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }
}

#[test]
fn a_future_is_one_region_with_its_polls_on_the_threads_that_poll() {
    let Some(dir) = program(this_test!(), || {
        let dispatch = guest();
        let mut future = tracing::dispatcher::with_default(&dispatch, || {
            Box::pin(pending(3).instrument(info_span!("request", task = 7u64)))
        });
        for name in ["first", "second", "first", "second"] {
            let dispatch = dispatch.clone();
            let turn = move || {
                tracing::dispatcher::with_default(&dispatch, || {
                    let _ = poll(future.as_mut());
                });
                future
            };
            future = thread::Builder::new().name(name.into()).spawn(turn).unwrap().join().unwrap();
        }
        tracing::dispatcher::with_default(&dispatch, || drop(future));
    }) else {
        return;
    };

    let events = events(dir.path());

    let [begin, polls @ .., end] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&*begin.event, &begin.fields["task"]), ("request_begin", &json!(7)));
    let id = &begin.fields["id"];
    assert_eq!(Value::Object(end.fields.clone()), json!({ "id": id, "any_client": true }));
    assert!(polls.iter().all(|poll| poll.fields["span"] == *id), "{polls:?}");
    // The last `poll_begin` is from the drop, because `tracing` enters the span of a future that it drops.
    let expected =
        Vec::from_iter(["poll_end"].into_iter().chain(["poll_begin", "poll_end"].repeat(4)));
    assert_eq!(polls.iter().map(|poll| &*poll.event).collect::<Vec<_>>(), expected);
    let threads = polls[..7].iter().map(|poll| poll.source.rsplit('/').next().unwrap());
    let expected = ["first", "second", "second", "first", "first", "second", "second"];
    assert_eq!(Vec::from_iter(threads), expected);
}

#[test]
fn the_regions_of_futures_are_the_futures_with_busy_and_idle_time() {
    const REQUESTS: usize = 20;
    const NAP: Duration = Duration::from_millis(2);
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            for _ in 0..REQUESTS {
                let mut future = Box::pin(pending(2).instrument(info_span!("request")));
                while poll(future.as_mut()).is_pending() {
                    thread::sleep(NAP);
                }
            }
            // This future is dropped before its end.
            let mut future = Box::pin(pending(2).instrument(info_span!("request")));
            let _ = poll(future.as_mut());
        });
    }) else {
        return;
    };

    let regions = regions(dir.path(), &[]);

    let [request, polls] = ["request", "poll"].map(|name| &regions[name]);
    assert_eq!((&request["count"], &polls["count"]), (&json!(21), &json!(3 * REQUESTS + 1)));
    let idle = request["total"]["parts"]["idle_ns"].as_u64().unwrap();
    assert!(u128::from(idle) >= 2 * NAP.as_nanos() * REQUESTS as u128, "{idle}");
    let busy = request["total"]["duration_ns"].as_u64().unwrap() - idle;
    assert!(busy > 0 && request["children"].as_array().unwrap().len() == 1, "{request}");
    assert_eq!(request["children"][0]["duration_ns"], polls["total"]["duration_ns"]);
    // The rest of the busy time is the time of the drops.
    let own = &request["self"];
    let drops = own["duration_ns"].as_u64().unwrap() - idle;
    assert_eq!(drops + polls["total"]["duration_ns"].as_u64().unwrap(), busy, "{request}");
    assert!(request["not_counted"].as_object().unwrap().values().all(|n| *n == 0), "{request}");
}

#[test]
fn the_spans_that_a_request_awaits_are_its_children() {
    const REQUESTS: usize = 20;
    const NAP: Duration = Duration::from_millis(1);
    async fn parse() {
        info_span!("check").in_scope(|| thread::sleep(NAP));
    }
    async fn query_and_cache() {
        let (query, cache) = (info_span!("query"), info_span!("cache"));
        let mut query = Box::pin(pending(2).instrument(query));
        let mut cache = Box::pin(pending(1).instrument(cache));
        let mut is_ready = [false; 2];
        std::future::poll_fn(|cx| {
            is_ready[0] |= !is_ready[0] && query.as_mut().poll(cx).is_ready();
            is_ready[1] |= !is_ready[1] && cache.as_mut().poll(cx).is_ready();
            if is_ready == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
    async fn request() {
        parse().instrument(info_span!("parse")).await;
        query_and_cache().await;
        pending(1).await;
    }
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            for _ in 0..REQUESTS {
                let mut future = Box::pin(request().instrument(info_span!("request")));
                while poll(future.as_mut()).is_pending() {
                    thread::sleep(NAP);
                }
            }
        });
    }) else {
        return;
    };

    let regions = regions(dir.path(), &[]);

    let request = &regions["request"];
    let children = request["children"].as_array().unwrap();
    let rows = children.iter().map(|child| (child["name"].as_str().unwrap(), child));
    let rows = BTreeMap::from_iter(rows);
    assert_eq!(Vec::from_iter(rows.keys()), [&"cache", &"parse", &"query"], "{request}");
    assert!(rows.values().all(|child| child["count"] == REQUESTS), "{request}");
    let ns = |times: &Value| times["duration_ns"].as_u64().unwrap();
    let idle = |times: &Value| times["parts"]["idle_ns"].as_u64().unwrap();
    let sum: u64 = children.iter().map(&ns).sum();
    assert_eq!(sum + ns(&request["self"]), ns(&request["total"]), "{request}");
    // The same poll begins a query and then the cache. The time in both spans counts for the query, because
    // the query began first.
    assert_eq!(ns(rows["query"]), ns(&regions["query"]["total"]));
    assert!(idle(rows["query"]) >= 2 * NAP.as_nanos() as u64 * REQUESTS as u64, "{request}");
    assert!(ns(rows["cache"]) < ns(&regions["cache"]["total"]), "{request}");
    assert_eq!(rows["parse"]["duration_ns"], regions["parse"]["total"]["duration_ns"]);
    // At its end, the request also awaits a future that has no span.
    let naps = NAP.as_nanos() as u64 * REQUESTS as u64;
    assert!((naps..idle(&request["total"])).contains(&idle(&request["self"])), "{request}");
    assert_eq!(regions["parse"]["children"][0]["name"], "check");
    let text = run(HYPERTRACE.command(["regions"]).arg(dir.path())).ok();
    let row = text.lines().find(|line| line.starts_with("    query ") && line.contains("20x"));
    assert!(row.is_some_and(|row| row.ends_with(" idle")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn polls_are_left_out_on_request() {
    let Some(dir) = program(this_test!(), || {
        let layer = HypertraceLayer::guest().without_polls();
        let dispatch = Dispatch::new(tracing_subscriber::registry().with(layer));
        tracing::dispatcher::with_default(&dispatch, || {
            let mut future = Box::pin(pending(3).instrument(info_span!("request")));
            while poll(future.as_mut()).is_pending() {}
        });
    }) else {
        return;
    };

    assert_eq!(names(&events(dir.path())), ["request_begin", "request_end"]);
}

#[test]
fn a_span_that_is_entered_once_costs_two_events_after_the_first_of_its_place() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            for _ in 0..3 {
                info_span!("work").in_scope(|| ());
            }
        });
    }) else {
        return;
    };

    let (begin, end) = ("work_begin", "work_end");
    assert_eq!(names(&events(dir.path())), [begin, "poll_end", end, begin, end, begin, end]);
}

#[test]
fn a_nested_entry_is_no_poll() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            let span = info_span!("outer");
            span.in_scope(|| span.in_scope(|| span.in_scope(|| ())));
        });
    }) else {
        return;
    };

    assert_eq!(names(&events(dir.path())), ["outer_begin", "poll_end", "outer_end"]);
}

#[test]
fn a_span_in_two_threads_at_once_is_one_region() {
    let Some(dir) = program(this_test!(), || {
        let dispatch = guest();
        tracing::dispatcher::with_default(&dispatch, || {
            let span = info_span!("shared");
            span.in_scope(|| {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        tracing::dispatcher::with_default(&dispatch, || span.in_scope(|| ()));
                    });
                });
            });
        });
    }) else {
        return;
    };

    let events = events(dir.path());

    let expected = ["shared_begin", "poll_begin", "poll_end", "poll_end", "shared_end"];
    assert_eq!(names(&events), expected);
    assert_eq!(events[4].fields["any_client"], true);
}

#[test]
fn parents_and_the_current_span_have_the_numbers_of_spans() {
    let Some(dir) = program(this_test!(), || {
        let hidden = filter_fn(|metadata| metadata.name() != "hidden");
        let layer = HypertraceLayer::guest().with_filter(hidden);
        let dispatch = Dispatch::new(tracing_subscriber::registry().with(layer));
        tracing::dispatcher::with_default(&dispatch, || {
            let outer = info_span!("outer");
            let entered = outer.enter();
            info_span!("hidden").in_scope(|| info_span!("inner").in_scope(|| info!("in inner")));
            info_span!(parent: None, "root").in_scope(|| ());
            info!(parent: None, "in none");
            drop(entered);
            info_span!(parent: &outer, "explicit").in_scope(|| ());
        });
    }) else {
        return;
    };

    let events = events(dir.path());

    let of = |name: &str, field: &str| {
        let event = events.iter().find(|event| event.event == name).unwrap();
        event.fields[field].as_u64().unwrap()
    };
    let outer = of("outer_begin", "id");
    assert_eq!([of("outer_begin", "parent"), of("root_begin", "parent")], [0, 0]);
    assert_eq!([of("inner_begin", "parent"), of("explicit_begin", "parent")], [outer, outer]);
    let current = events.iter().filter(|event| event.event == "log_info");
    let current = Vec::from_iter(current.map(|event| event.fields["span"].as_u64().unwrap()));
    assert_eq!(current, [of("inner_begin", "id"), 0]);
    assert!(!events.iter().any(|event| event.event.starts_with("hidden")), "{events:?}");
}

#[test]
fn numbers_of_spans_do_not_repeat_in_threads_and_forked_children() {
    const SPANS: u64 = 20_000;
    let Some(dir) = program(this_test!(), || {
        let dispatch = guest();
        let spans = || {
            tracing::dispatcher::with_default(&dispatch, || {
                for _ in 0..SPANS {
                    hypertrace::with_client(|client| client.wait_for_room(4, 16));
                    info_span!("work").in_scope(|| ());
                }
            });
        };
        thread::scope(|scope| {
            scope.spawn(spans);
            scope.spawn(spans);
        });
        let open = tracing::dispatcher::with_default(&dispatch, || {
            info_span!("open", pid = std::process::id()).entered()
        });
        let open = Cell::new(Some(open));
        fork(|| {
            spans();
            // The parent ends this span.
            drop(open.take());
        });
        spans();
        drop(open.take());
    }) else {
        return;
    };

    let ids = |name: &str| {
        let events = events(dir.path()).into_iter().filter(|event| event.event == name);
        Vec::from_iter(events.map(|event| event.fields["id"].as_u64().unwrap()))
    };
    let works = ids("work_begin");
    assert_eq!(works.len() as u64, 4 * SPANS);
    assert_eq!(BTreeSet::from_iter(works).len() as u64, 4 * SPANS);
    assert_eq!((ids("open_begin").len(), ids("open_end").len()), (1, 1));
    let events = events(dir.path());
    let open = events.iter().find(|event| event.event == "open_begin").unwrap();
    let [id, pid] = ["id", "pid"].map(|field| open.fields[field].as_u64().unwrap());
    // A process in another PID namespace may have the same pid.
    assert_ne!(id >> 31, pid);
}

#[test]
fn values_before_the_first_entry_are_recorded_and_a_span_without_one_is_no_region() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            let never = info_span!("never", status = tracing::field::Empty);
            never.record("status", 200u64);
            let work = info_span!("work", any_client = true);
            work.in_scope(|| ());
        });
    }) else {
        return;
    };

    let events = events(dir.path());

    assert_eq!(names(&events), ["never_record", "work_begin", "poll_end", "work_end"]);
    assert_eq!(events[0].fields["status"], 200);
    assert_eq!(events[1].fields["any_client_"], true);
}

#[test]
fn a_span_that_is_left_open_is_a_begin_without_an_end() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            info_span!("closed").in_scope(|| ());
            std::mem::forget(info_span!("left").entered());
        });
    }) else {
        return;
    };

    let regions = regions(dir.path(), &[]);

    assert_eq!(regions["closed"]["count"], 1);
    assert_eq!(regions["left"]["count"], 0);
    assert_eq!(regions["left"]["not_counted"]["begin_without_end"], 1);
}

#[test]
fn events_have_level_target_message_and_typed_fields() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            error!(target: "disk", code = -5i64, "read of {} failed", "sda");
            warn!(full = true);
            debug!(text = "t", value = ?Some(1), wide = 1u128);
        });
        log::set_logger(Box::leak(Box::new(Logger::guest()))).unwrap();
        log::set_max_level(log::LevelFilter::Info);
        log::info!(target: "net", "link {}", "up");
        log::debug!("beyond the level of the crate");
    }) else {
        return;
    };

    let events = events(dir.path());

    let expected = [
        (
            "log_error",
            json!({"target": "disk", "span": 0, "message": "read of sda failed", "code": -5, "cut": 0}),
        ),
        ("log_warn", json!({"target": module_path!(), "span": 0, "full": true, "cut": 0})),
        (
            "log_debug",
            json!({"target": module_path!(), "span": 0, "text": "t", "value": "Some(1)", "wide": "1", "cut": 0}),
        ),
        ("log_info", json!({"target": "net", "message": "link up", "cut": 0})),
    ];
    let found: Vec<(&str, Value)> =
        events.iter().map(|event| (&*event.event, event.fields.clone().into())).collect();
    assert_eq!(found, expected);
}

#[test]
fn long_texts_are_cut_and_say_how_much() {
    let Some(dir) = program(this_test!(), || {
        let long = "\u{e4}".repeat(MESSAGE_BYTES);
        tracing::dispatcher::with_default(&guest(), || {
            info!("{long}");
            info!(a = &*long, b = &*long, c = &*long, last = 1u64);
            info_span!("long", text = &*long, number = 1u64).in_scope(|| ());
        });
        log::set_logger(Box::leak(Box::new(Logger::guest()))).unwrap();
        log::set_max_level(log::LevelFilter::Info);
        log::info!("{long}");
        let counts = counts();
        // Four texts of `tracing` are cut: the message, a, b and the span's text. b fills the rest of its
        // event, so c and `last` are missing.
        assert_eq!((counts.cut, counts.fields), (4, 2), "{counts:?}");
    }) else {
        return;
    };

    let events = events(dir.path());

    let len = |event: &Line, field: &str| event.fields[field].as_str().unwrap().len();
    assert_eq!((len(&events[0], "message"), &events[0].fields["cut"]), (512, &json!(512)));
    let (a, b) = (len(&events[1], "a"), len(&events[1], "b"));
    assert!(a == 512 && b < 512, "{a} {b}");
    assert_eq!(events[1].fields["cut"], 2 * 1024 - a - b);
    assert!(!events[1].fields.contains_key("c") && !events[1].fields.contains_key("last"));
    assert_eq!((len(&events[2], "text"), &events[2].fields["number"]), (64, &json!(1)));
    assert_eq!((len(&events[5], "message"), &events[5].fields["cut"]), (512, &json!(512)));
}

/// Calls a macro for each of 225 names.
macro_rules! names {
    ($each:ident) => { names!(@all $each [a b c d e f g h i j k l m n o]); };
    (@all $each:ident [$($first:ident)*]) => { $(names!(@one $each $first);)* };
    (@one $each:ident $first:ident) => {
        names!(@each $each $first [a b c d e f g h i j k l m n o])
    };
    (@each $each:ident $first:ident [$($second:ident)*]) => {
        $($each!(concat!(stringify!($first), "_", stringify!($second)));)*
    };
}

#[test]
fn names_past_the_bound_are_in_a_field_and_counted() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            macro_rules! each {
                ($name:expr) => {
                    info_span!($name, n = 1u64).in_scope(|| ())
                };
            }
            info!(queue = 4u64, "first");
            // Each span uses four schemas, so 99 spans leave 3 of 400 schemas. All spans without their own
            // fields share these 3 schemas.
            names!(each);
            info!(queue = 5u64, "late");
        });
        let counts = counts();
        assert!((counts.without_schema, counts.cut) == (225 - 99 + 1, 0), "{counts:?}");
    }) else {
        return;
    };

    let events = events(dir.path());

    // No span is lost.
    let others: Vec<&Line> = events.iter().filter(|event| event.event == "span_begin").collect();
    assert_eq!(others.len(), 225 - 100);
    assert_eq!(others.last().unwrap().fields["name"], "o_o");
    let ends = events.iter().filter(|event| event.event.ends_with("_end"));
    assert_eq!(ends.filter(|event| event.event != "poll_end").count(), 225);
    let (first, last) = (events.first().unwrap(), events.last().unwrap());
    assert_eq!((&*first.event, &first.fields["queue"]), ("log_info", &json!(4)));
    assert_eq!((&*last.event, &last.fields["message"]), ("log_info", &json!("late queue=5")));
    let regions = regions(dir.path(), &[]);
    assert_eq!(regions["a_a"]["count"], 1);
    assert_eq!(regions["span"]["count"], others.len());
}

#[test]
fn ten_thousand_spans_of_two_threads_keep_their_fields_and_too_many_are_counted() {
    const SPANS: u64 = 5_000;
    let Some(dir) = program(this_test!(), || {
        let dispatch = guest();
        let all_are_open = Barrier::new(2);
        thread::scope(|scope| {
            for thread in 0..2u64 {
                let (dispatch, all_are_open) = (&dispatch, &all_are_open);
                scope.spawn(move || {
                    tracing::dispatcher::with_default(dispatch, || {
                        let span = |n| info_span!("open", n = thread * SPANS + n);
                        let spans = Vec::from_iter((0..SPANS).map(span));
                        all_are_open.wait();
                        for span in spans {
                            hypertrace::with_client(|client| client.wait_for_room(4, 16));
                            span.in_scope(|| ());
                        }
                    });
                });
            }
        });
        assert_eq!(counts().lost_spans, 0);
        tracing::dispatcher::with_default(&dispatch, || {
            let span = |_| {
                hypertrace::with_client(|client| client.wait_for_room(4, 16));
                info_span!("many")
            };
            let spans = Vec::from_iter((0..20_000).map(span));
            drop(spans);
        });
        hypertrace::event!("counted", n = counts().lost_spans);
    }) else {
        return;
    };

    let events = events(dir.path());

    let begins = events.iter().filter(|event| event.event == "open_begin");
    let fields = BTreeSet::from_iter(begins.map(|begin| begin.fields["n"].as_u64().unwrap()));
    assert_eq!(fields, BTreeSet::from_iter(0..2 * SPANS));
    let lost = Vec::from_iter(events.iter().filter(|event| event.event == "span_lost"));
    assert!(lost.len() >= 20_000 - 16_384, "{}", lost.len());
    assert!(lost.iter().all(|event| event.fields["name"] == "many"));
    assert_eq!(events.last().unwrap().fields["n"], lost.len());
}

#[test]
fn of_forty_fields_thirteen_are_recorded_and_the_others_counted() {
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            macro_rules! forty {
                ($($name:ident)*) => { info_span!("wide", $($name = 1u64),*).in_scope(|| ()) };
            }
            forty!(
                a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 b0 b1 b2 b3 b4 b5 b6 b7 b8 b9
                c0 c1 c2 c3 c4 c5 c6 c7 c8 c9 d0 d1 d2 d3 d4 d5 d6 d7 d8 d9
            );
            assert_eq!(counts().fields, 27);
        });
    }) else {
        return;
    };

    let events = events(dir.path());

    assert_eq!(events[0].fields.len(), 3 + 13, "{events:?}");
    assert_eq!((&events[0].fields["b2"], &events[0].fields["parent"]), (&json!(1), &json!(0)));
    assert_eq!(names(&events), ["wide_begin", "poll_end", "wide_end"]);
}

#[test]
fn a_value_that_logs_does_not_recur() {
    struct Loud;
    impl fmt::Debug for Loud {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            info!(again = ?Loud, "formatting");
            log::info!("formatting {:?}", Loud);
            let _span = info_span!("inner", again = ?Loud);
            f.write_str("loud")
        }
    }
    let Some(dir) = program(this_test!(), || {
        log::set_logger(Box::leak(Box::new(Logger::guest()))).unwrap();
        log::set_max_level(log::LevelFilter::Info);
        // Inside the formatting of a value, tracing uses a global default, but not the default of the thread.
        tracing::dispatcher::set_global_default(guest()).unwrap();
        info!(value = ?Loud, "outer");
        info_span!("outer", value = ?Loud).in_scope(|| ());
        log::info!("{Loud:?}");
        // The value `Loud` is formatted in an event, a span and a log message. Each formatting makes an event,
        // a log record and a span, and all three are refused as nested.
        assert_eq!(counts().nested, 9);
    }) else {
        return;
    };

    let events = events(dir.path());

    assert_eq!(names(&events), ["log_info", "outer_begin", "poll_end", "outer_end", "log_info"]);
    assert_eq!(events[0].fields["value"], "loud");
    assert_eq!(events[4].fields["message"], "loud");
}

/// Takes a lock, so that one test runs at a time, because the switches of a host's events belong to the whole
/// program.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn host_session(patterns: &[&str]) -> (TempDir, Session) {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();
    session.set_events(&"*".parse().unwrap(), false).unwrap();
    for pattern in patterns {
        session.set_events(&pattern.parse().unwrap(), true).unwrap();
    }
    (dir, session)
}

#[test]
fn a_vmms_threads_have_spans_and_events_too() {
    let _alone = alone();
    let (dir, session) = host_session(&["span_*", "log_*"]);
    let dispatch = host();
    thread::scope(|scope| {
        for name in ["io0", "io1"] {
            let (dispatch, session) = (&dispatch, &session);
            scope.spawn(move || {
                assert!(session.attach(name));
                tracing::dispatcher::with_default(dispatch, || {
                    for n in 0..10u64 {
                        let _span = info_span!("request", n, kind = "read").entered();
                        info!(left = 10 - n, "taken");
                    }
                });
                let mut record = log::Record::builder();
                let record = record.target("net").level(log::Level::Warn);
                log::Log::log(&Logger::host(), &record.args(format_args!("queue stops")).build());
            });
        }
    });
    session.finish().unwrap();

    let events = events(dir.path());

    for name in ["vmm/io0", "vmm/io1"] {
        let is_own = |event: &&Line| event.source == name && event.event != "poll_end";
        let own: Vec<&Line> = events.iter().filter(is_own).collect();
        assert_eq!(own.len(), 31);
        let (last, own) = own.split_last().unwrap();
        for (n, events) in own.chunks(3).enumerate() {
            let [begin, taken, end] = events else { panic!("{events:?}") };
            let id = begin.fields["id"].clone();
            let target = module_path!();
            let expected = json!({"id": id, "parent": 0, "n": n, "kind": "read", "target": target});
            assert_eq!(("request_begin", expected), (&*begin.event, begin.fields.clone().into()));
            let expected =
                json!({"target": target, "span": id, "message": "taken", "left": 10 - n, "cut": 0});
            assert_eq!(("log_info", expected), (&*taken.event, taken.fields.clone().into()));
            assert_eq!(("request_end", &id), (&*end.event, &end.fields["id"]));
        }
        let expected = json!({"target": "net", "message": "queue stops", "cut": 0});
        assert_eq!(("log_warn", expected), (&*last.event, last.fields.clone().into()));
    }
    assert_eq!(regions(dir.path(), &[])["request"]["count"], 20);
}

#[test]
fn what_is_off_on_a_host_is_not_formatted() {
    struct Never;
    impl fmt::Debug for Never {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("formatted")
        }
    }
    let _alone = alone();
    let (dir, session) = host_session(&["log_warn"]);
    session.attach("worker");

    tracing::dispatcher::with_default(&host(), || {
        info!(value = ?Never, "off");
        info_span!("request", value = ?Never).in_scope(|| warn!("on"));
    });
    session.finish().unwrap();

    assert_eq!(names(&events(dir.path())), ["log_warn"]);
}

#[test]
fn the_guests_mask_switches_names_and_levels() {
    struct Never;
    impl fmt::Debug for Never {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("formatted")
        }
    }
    if traced::argument().is_some() {
        tracing::dispatcher::with_default(&guest(), || {
            // Each turn makes a reference point, because the library loads the new mask at a point.
            while hypertrace::reference_point!("asked").is_ok()
                && hypertrace::is_on(hypertrace::abi::schema::mask_slot("log_debug"))
            {
                thread::yield_now();
            }
            debug!(value = ?Never, "off");
            debug_span!("quiet", value = ?Never).in_scope(|| ());
            debug_span!("loud").in_scope(|| info!("on"));
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let session =
        hypertrace_user::Session::create(hypertrace_user::Config::new(dir.path())).unwrap();
    for pattern in ["log_debug", "quiet_begin", "quiet_end"] {
        session.trace().set_events(&pattern.parse().unwrap(), false).unwrap();
    }
    let mut command = child::alone(this_test!());
    command.env("HYPERTRACE_TEST_PROGRAM", "traced");
    session.pass_to(&mut command);
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    session.finish().unwrap();

    let mut events = events(dir.path());
    events.retain(|event| event.event != "asked");

    assert_eq!(names(&events), ["loud_begin", "log_info", "poll_end", "loud_end"]);
}
