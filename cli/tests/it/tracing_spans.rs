//! The crates `log` and `tracing` in a program's and in a VMM's trace, as babeltrace2 and the command
//! read it.

use hypertrace_tests::child;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use hypertrace_log::{Logger, MESSAGE_BYTES};
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::report::Line;
use hypertrace_tests::{babeltrace2, this_test, traced};
use hypertrace_trace::{Session, SessionConfig};
use hypertrace_tracing::{HypertraceLayer, counts};
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing::{Dispatch, debug, debug_span, error, info, info_span, warn};
use tracing_subscriber::layer::SubscriberExt;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn guest() -> Dispatch {
    tracing_subscriber::registry().with(HypertraceLayer::guest()).into()
}

fn host() -> Dispatch {
    tracing_subscriber::registry().with(HypertraceLayer::host()).into()
}

/// Runs the calling test, whose name is `test`, as a traced program, where it executes `body`. Returns the
/// session; `None` in the program.
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

/// The events of a session without leases, as `report` has them, which babeltrace2 reads too.
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

/// The groups of `regions`, by name.
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

    assert_eq!(names(&events), ["http_request_begin", "http_request_end", "http_request_record"]);
    let id = events[0].fields["id"].clone();
    let begin = json!({
        "id": id, "bytes": 512, "offset": -3, "load": 0.5, "cached": true, "path": "/index",
        "peer": "[1, 2]", "id_": 9,
    });
    assert_eq!(Value::Object(events[0].fields.clone()), begin);
    assert_eq!(Value::Object(events[1].fields.clone()), json!({ "id": id }));
    assert_eq!(Value::Object(events[2].fields.clone()), json!({ "id": id, "status": 200 }));
    assert_eq!(regions(dir.path(), &[])["http_request"]["count"], 1);
    let by = run(HYPERTRACE.command(["regions", "--csv", "--by", "path"]).arg(dir.path()));
    assert!(by.stdout.contains("http_request,/index,"), "{by:?}");
}

#[test]
fn each_entry_is_a_region_on_the_thread_that_enters() {
    let Some(dir) = program(this_test!(), || {
        let dispatch = guest();
        // As a future that is polled on two threads, and closed on the second.
        let span =
            tracing::dispatcher::with_default(&dispatch, || info_span!("polled", task = 7u64));
        for name in ["first", "second"] {
            let (dispatch, span) = (dispatch.clone(), span.clone());
            let poll = move || {
                tracing::dispatcher::with_default(&dispatch, || {
                    (0..10).for_each(|_| span.in_scope(|| ()));
                });
            };
            thread::Builder::new().name(name.into()).spawn(poll).unwrap().join().unwrap();
        }
    }) else {
        return;
    };

    let events = events(dir.path());

    assert_eq!(events.len(), 40);
    assert!(events[..20].iter().all(|event| event.source.ends_with("/first")), "{events:?}");
    assert!(events[20..].iter().all(|event| event.source.ends_with("/second")), "{events:?}");
    assert!(events.iter().step_by(2).all(|event| event.fields["task"] == 7), "{events:?}");
    let polled = &regions(dir.path(), &[])["polled"];
    assert_eq!(polled["count"], 20);
    assert!(polled["not_counted"].as_object().unwrap().values().all(|n| *n == 0), "{polled}");
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
            json!({"target": "disk", "message": "read of sda failed", "code": -5, "cut": 0}),
        ),
        ("log_warn", json!({"target": module_path!(), "full": true, "cut": 0})),
        (
            "log_debug",
            json!({"target": module_path!(), "text": "t", "value": "Some(1)", "wide": "1", "cut": 0}),
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
        // The message, a, b and the span's text; b takes the last word.
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
    assert_eq!((len(&events[4], "message"), &events[4].fields["cut"]), (512, &json!(512)));
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
            names!(each);
            // 85 spans of three schemas each have one of 256 left.
            info!(queue = 4u64, "last");
            info!(queue = 5u64, "late");
        });
        let counts = counts();
        assert!((counts.without_schema, counts.cut) == (225 - 85 + 1, 0), "{counts:?}");
    }) else {
        return;
    };

    let events = events(dir.path());

    // None is lost.
    assert_eq!(events.len(), 2 * 225 + 2);
    let others: Vec<&Line> = events.iter().filter(|event| event.event == "span_begin").collect();
    assert_eq!(others.len(), 225 - 85);
    assert_eq!(others.last().unwrap().fields["name"], "o_o");
    assert_eq!((&*events[450].event, &events[450].fields["queue"]), ("log_info", &json!(4)));
    assert_eq!(
        (&*events[451].event, &events[451].fields["message"]),
        ("log_info", &json!("late queue=5"))
    );
    let regions = regions(dir.path(), &[]);
    assert_eq!(regions["a_a"]["count"], 1);
    assert_eq!(regions["span"]["count"], others.len());
}

#[test]
fn more_open_spans_than_places_lose_their_fields_and_are_counted() {
    const SPANS: usize = 1500;
    let Some(dir) = program(this_test!(), || {
        tracing::dispatcher::with_default(&guest(), || {
            let spans: Vec<_> = (0..SPANS as u64).map(|n| info_span!("open", n)).collect();
            for span in &spans {
                hypertrace::with_client(|client| client.wait_for_room(4, 8));
                span.in_scope(|| ());
            }
        });
        hypertrace::event!("counted", n = counts().without_fields);
    }) else {
        return;
    };

    let events = events(dir.path());

    let begins: Vec<_> = events.iter().filter(|event| event.event == "open_begin").collect();
    assert_eq!(begins.len(), SPANS);
    let without = begins.iter().filter(|event| !event.fields.contains_key("n")).count();
    assert!((SPANS - 1024..SPANS - 512).contains(&without), "{without}");
    assert_eq!(events.last().unwrap().fields["n"], without);
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
        // A default of the thread only would not be asked again.
        tracing::dispatcher::set_global_default(guest()).unwrap();
        info!(value = ?Loud, "outer");
        info_span!("outer", value = ?Loud).in_scope(|| ());
        log::info!("{Loud:?}");
        // An event, a record and a span's fields, each three times.
        assert_eq!(counts().nested, 9);
    }) else {
        return;
    };

    let events = events(dir.path());

    assert_eq!(names(&events), ["log_info", "outer_begin", "outer_end", "log_info"]);
    assert_eq!(events[0].fields["value"], "loud");
    assert_eq!(events[3].fields["message"], "loud");
}

/// Takes a lock for one test at a time: the switches of a host's events belong to the whole program.
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

    assert_eq!(events.len(), 2 * 31);
    for name in ["vmm/io0", "vmm/io1"] {
        let own: Vec<&Line> = events.iter().filter(|event| event.source == name).collect();
        let (last, own) = own.split_last().unwrap();
        for (n, events) in own.chunks(3).enumerate() {
            let [begin, taken, end] = events else { panic!("{events:?}") };
            let id = begin.fields["id"].clone();
            let expected = json!({"id": id, "n": n, "kind": "read"});
            assert_eq!(("request_begin", expected), (&*begin.event, begin.fields.clone().into()));
            let expected =
                json!({"target": module_path!(), "message": "taken", "left": 10 - n, "cut": 0});
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
            // By a point, so that the library has the mask afterwards.
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

    assert_eq!(names(&events), ["loud_begin", "log_info", "loud_end"]);
}
