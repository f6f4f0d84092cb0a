//! `hypertrace export --to otlp`: the spans of a demo, and collectors that do not take them.

use hypertrace_test_support::made;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::{capability, kvm};
use made::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::spawn;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns the spans in a file of requests.
fn spans(text: &str) -> Vec<Value> {
    let mut spans = Vec::new();
    for request in text.lines() {
        let request: Value = serde_json::from_str(request).unwrap();
        for resource in request["resourceSpans"].as_array().unwrap() {
            for scope in resource["scopeSpans"].as_array().unwrap() {
                spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
            }
        }
    }
    spans
}

/// Returns the attributes that are texts or numbers, as texts.
fn attributes(of: &Value) -> BTreeMap<String, String> {
    let one = |one: &Value| {
        let value = one["value"].as_object()?.values().next()?.as_str()?.to_owned();
        Some((one["key"].as_str()?.to_owned(), value))
    };
    of["attributes"].as_array().unwrap().iter().filter_map(one).collect()
}

fn number(text: &Value) -> i64 {
    text.as_str().unwrap().parse().unwrap()
}

#[test]
fn parts_and_waits_of_a_demos_spans_are_those_of_its_regions() {
    if !kvm::is_usable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (session, file) = (folder.path().join("S"), folder.path().join("spans"));
    // The demo records the kernel's events, too, where this machine lets it.
    let demo = run(HYPERTRACE.command(["demo", "--vcpus", "2", "-o"]).arg(&session));
    assert_eq!(demo.code, Some(0), "{}", demo.stderr);
    let mut export = HYPERTRACE.command(["export", "--to", "otlp", "-o"]);
    let ran = run(export.arg(&file).arg(&session)).beside_missing_switches();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let text = fs::read_to_string(&file).unwrap();
    let spans = spans(&text);

    // The sums of all spans by name have to equal the sums of `regions`.
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for span in &spans {
        let name = span["name"].as_str().unwrap().to_owned();
        *sums.entry((name.clone(), "count".into())).or_default() += 1;
        for (key, value) in attributes(span) {
            let part = key.strip_prefix("hypertrace.").filter(|part| part.ends_with("_ns"));
            if let Some(part) = part.filter(|part| !part.ends_with("_bound_ns")) {
                let sum = sums.entry((name.clone(), part.into())).or_default();
                *sum += value.parse::<u64>().unwrap();
            }
        }
    }
    let mut regions = HYPERTRACE.command(["regions", "--json"]);
    let regions = run(regions.arg(&session)).beside_missing_switches().stdout;
    let regions: Value = serde_json::from_str(&regions).unwrap();
    let mut expected = BTreeMap::new();
    for group in regions["regions"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        let parts = group["total"]["parts"].as_object().unwrap().iter();
        let parts = parts.map(|(part, ns)| (part.as_str(), ns));
        for (part, ns) in parts.chain([("count", &group["count"])]) {
            let ns = ns.as_u64().or_else(|| ns.as_str()?.parse().ok()).unwrap();
            if ns > 0 {
                expected.insert((name.to_owned(), part.to_owned()), ns);
            }
        }
    }
    assert_eq!(sums, expected);
    assert!(spans.len() > 1_000, "{}", spans.len());

    // Each event of a span is a wait of the thread.
    let mut intervals = HYPERTRACE.command(["regions", "--intervals"]);
    let intervals = run(intervals.arg(&session)).beside_missing_switches().stdout;
    let waits: BTreeSet<(i64, u64, String)> = intervals
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| {
            (
                number(&line["begin_ns"]),
                line["duration_ns"].as_u64().unwrap(),
                line["part"].to_string(),
            )
        })
        .collect();
    let mut events = 0;
    for span in &spans {
        let [begin, end] = ["startTimeUnixNano", "endTimeUnixNano"].map(|key| number(&span[key]));
        for event in span["events"].as_array().into_iter().flatten() {
            let (at, of) = (number(&event["timeUnixNano"]), attributes(event));
            let wait = (at, of["duration_ns"].parse().unwrap(), event["name"].to_string());
            assert!(waits.contains(&wait), "{event}");
            assert!(at < end && at + (wait.1 as i64) > begin, "{span}");
            events += 1;
        }
    }
    println!("{} spans, {events} waits", spans.len());
    let is_waiting = |((_, part), _): (&(String, String), &u64)| {
        ["runnable_ns", "blocked_ns"].contains(&&**part)
    };
    assert_eq!(events > 0, sums.iter().any(is_waiting));

    let Some(jq) = capability::program("jq") else { return };
    let names = ".resourceSpans[].scopeSpans[].spans[].name";
    let read = run(Command::new(jq).args(["-r", names]).arg(&file)).ok();
    assert_eq!(read.lines().count(), spans.len());
    capability::used("jq");
}

/// Makes a session with more regions than fit in a request.
fn session() -> Made {
    let events = r#"[
        {"id":16,"schema":"work_begin(id:u64)"},
        {"id":17,"schema":"work_end(id:u64)"}
    ]"#;
    let mut packet = Packet::new(1, 0, 0).lease(1_000, 7, "worker");
    for n in 0..600 {
        packet = packet.event(2_000 + 20 * n, 16, &[n]).event(2_010 + 20 * n, 17, &[n]);
    }
    Made::of_programs(events).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet])
}

/// Starts a collector that gives these answers, one after the other. Returns its address.
fn collector(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    spawn(move || {
        for (answer, stream) in answers.iter().zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"]}]}]}") {
                let read = stream.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..read]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

fn exported(session: &Path, options: &[&str]) -> (Option<i32>, String) {
    let ran = run(HYPERTRACE.command(["export", "--to", "otlp"]).arg(session).args(options));
    (ran.code, ran.stderr)
}

const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

#[test]
fn what_a_collector_accepted_and_what_it_did_not_is_said() {
    let session = session();
    let to = |answers| {
        let address = collector(answers);
        let (code, said) = exported(session.path(), &["--otlp-endpoint", &address]);
        (code, said.replace(&address, "E"))
    };

    let whole = "hypertrace: E/v1/traces: 600 spans\n";
    assert_eq!(to(&[GOOD, GOOD]), (Some(0), whole.into()));

    let refused = "hypertrace: 512 spans accepted; the next 88 spans and all later ones are not sent: \
                   E/v1/traces answered 400: no\n";
    assert_eq!(to(&[GOOD, "HTTP/1.1 400 Bad\r\n\r\nno"]), (Some(1), refused.into()));

    let partial = "HTTP/1.1 200 OK\r\n\r\n{\"partialSuccess\":{\"rejectedSpans\":\"3\",\"errorMessage\":\"old\"}}";
    let partial: &'static [&'static str] = Box::leak(Box::new([partial, GOOD]));
    let rejected = "hypertrace: E/v1/traces rejected 3 of 600 spans: old\n";
    assert_eq!(to(partial), (Some(1), rejected.into()));
}

#[test]
fn a_terminal_shows_what_a_collector_has_accepted() {
    let Some(script) = capability::program("script") else { return };
    let (session, address) = (session(), collector(&[GOOD, GOOD]));
    let path = session.path().display();
    let command = format!("{} export {path} --to otlp --otlp-endpoint {address}", HYPERTRACE.0);
    let mut script = Command::new(&script);
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    // Without TERM, the command does not know how to move the terminal's cursor, and shows no progress.
    let shown = run(script.env("TERM", "xterm").stdin(Stdio::null())).ok();
    assert!(shown.contains(" spans accepted in "), "{shown:?}");
    capability::used("script");
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let session = session();
    for (options, why) in [
        (&["--otlp-endpoint", "https://a"][..], "there is no TLS: send to a collector on this"),
        (&["--otlp-endpoint", "a:1"], "expected http://HOST:PORT"),
        (&["--otlp-endpoint", "http://a", "-o", "x"], "cannot be used with"),
        (&["-o", "-", "--event", "x"], "--event and --client are not for regions"),
        (&["-o", "-", "--where", "nothing > 1"], "--where: "),
        (&[], "give --otlp-endpoint URL, or -o FILE"),
    ] {
        let (code, said) = exported(session.path(), options);
        assert_eq!(code, Some(2), "{options:?} {said}");
        assert!(said.contains(why), "{options:?} {said}");
    }
    let mut json = HYPERTRACE.command(["export", "--to", "json", "--otlp-endpoint", "http://a"]);
    let said = run(json.arg(session.path()));
    assert_eq!((said.code, said.stderr.contains("is for --to otlp")), (Some(2), true), "{said:?}");
}
