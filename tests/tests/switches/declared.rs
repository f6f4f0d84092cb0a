//! Patterns that switch both the declared events in the session and the guest's events.
#![allow(unsafe_code)] // fork

use crate::alone;
use hypertrace_test_support::steps::Steps;

use hypertrace::{ProducerState, event};
use hypertrace_test_support::kept::{Event, Value};
use hypertrace_tests::host::{Host, events, geometry};
use hypertrace_tests::{trace, trace_each_kind};
use hypertrace_trace::control::set_declared;
use hypertrace_trace::event::EVENTS;
use hypertrace_trace::{Session, SessionConfig, attach, enabled};
use std::thread;

fn only(host: &Host, pattern: &str) {
    host.session.set_events(&"*".parse().unwrap(), false).unwrap();
    host.session.set_events(&pattern.parse().unwrap(), true).unwrap();
}

fn names(events: &[Event]) -> Vec<&str> {
    let own = events.iter().filter(|event| &*event.name != "lease");
    own.map(|event| &*event.name).collect()
}

fn values(event: &Event) -> Vec<Value> {
    event.fields.iter().map(|(_, value)| value.clone()).collect()
}

#[test]
fn every_kind_of_argument_is_recorded_unchanged() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    host.session.attach("test");
    only(&host, "test_*");

    trace_each_kind();

    let events = host.finish().events();
    let expected =
        ["test_none", "test_pair", "test_small", "test_text", "test_two_texts", "test_address"];
    assert_eq!(names(&events), expected);
    let own: Vec<_> = events.iter().filter(|event| event.name.starts_with("test_")).collect();
    use Value::{Bool, Hex, Signed, Str, Unsigned};
    assert_eq!(values(own[1]), [Unsigned(1), Unsigned(u64::MAX)]);
    let small = [Signed(-1), Unsigned(65_535), Signed(i32::MIN.into()), Bool(true)];
    assert_eq!(values(own[2]), small);
    assert_eq!(values(own[3]), [Unsigned(7), Str("héllo\n".as_bytes().into())]);
    assert_eq!(values(own[4]), [Str(b"\xff\xfe"[..].into()), Str([].into()), Signed(-5)]);
    assert_eq!(values(own[5]), [Hex(0xdead_beef), Signed(i64::MIN)]);
}

#[test]
fn an_event_is_recorded_while_it_is_on() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    host.session.attach("test");
    only(&host, "test_p*");
    assert!(enabled!(trace::test_pair) && !enabled!(trace::test_other));
    assert!(!enabled!(trace::test_disabled));

    trace::test_other(1);
    trace::test_pair(1, 1);
    only(&host, "test_other");
    trace::test_pair(2, 2);
    trace::test_other(2);

    let recorded = host.finish();
    assert_eq!(names(&recorded.events()), ["test_pair", "test_other"]);
    assert!(!enabled!(trace::test_other), "there is no session that wants it");
}

#[test]
fn every_declaration_except_disabled_ones_is_in_the_registry() {
    let declared = |name: &str| EVENTS.iter().any(|event| event.name() == name);
    for name in ["test_none", "test_two_texts", "vcpu_exit", "guest_hypertrace"] {
        assert!(declared(name), "{name}");
    }
    assert!(!declared("test_disabled"));
    let all = hypertrace_trace::event::trace_events_all();
    for line in [
        "test_text(uint32_t n, const char *text) \"n %u text %s\"\n",
        // QEMU's reader takes these types: `int c` becomes `int32_t c`.
        "test_small(int8_t a, uint16_t b, int32_t c, bool d) \"a %d b %u c %d d %d\"\n",
        "test_address(void *p, int64_t n) \"p %p n %\" PRId64\n",
    ] {
        assert!(all.contains(line), "{line}{all}");
    }
}

#[test]
fn the_guests_events_obey_the_same_patterns_before_and_after_they_are_known() {
    let _alone = alone();
    let host = Host::new(geometry(2));
    let states = [ProducerState::new(), ProducerState::new()];
    let client = host.lease(0, &states[0], "early");
    let other = host.lease(1, &states[1], "late");
    // The event is switched off by name, before its first use.
    host.session.set_events(&"never_used".parse().unwrap(), false).unwrap();
    host.chip.drain_all();
    client.poll();
    event!(client: &client, "never_used");
    event!(client: &client, "disk_read", n = 1u64);
    host.chip.drain_all();

    // The host knows the event `disk_read` now, so a pattern switches the event off. Events that the guest
    // emits before it has the mask are filtered.
    host.session.set_events(&"disk_*".parse().unwrap(), false).unwrap();
    event!(client: &client, "disk_read", n = 2u64);
    host.chip.drain_all();
    client.poll();
    event!(client: &client, "disk_read", n = 3u64);
    // The guest emits an event whose name the host has not seen, and the host filters it.
    event!(client: &other, "disk_write", n = 4u64);
    event!(client: &other, "net", n = 5u64);
    host.chip.drain_all();
    client.release();
    other.release();
    host.chip.drain_all();

    let recorded = host.finish();
    assert_eq!(names(&recorded.events()), ["disk_read", "net"]);
    assert_eq!((recorded.client(0).filtered, recorded.client(1).filtered), (1, 1));
    assert_eq!(recorded.summary.lost, 0);
}

#[test]
fn events_of_a_thread_without_a_ring_go_to_the_default_session() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    only(&host, "test_pair");
    host.session.install();

    std::thread::scope(|scope| {
        scope.spawn(|| trace::test_pair(1, 2));
    });
    host.session.begin_pass();
    host.session.end_pass();

    assert_eq!(names(&host.finish().events()), ["test_pair"]);
}

#[test]
fn a_forked_child_is_not_recorded_and_does_no_harm() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    host.session.attach("parent");
    only(&host, "test_*");
    trace::test_pair(1, 1);
    // SAFETY: the child calls only the tested functions, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let still_on = enabled!(trace::test_pair);
        for n in 0..1000 {
            trace::test_pair(n, n);
        }
        let attached = host.session.attach("child");
        // SAFETY: the call ends the process without running destructors.
        unsafe { libc::_exit(i32::from(still_on) | i32::from(attached) << 1) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this process, and `status` is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "on: {}, attached: {}", status >> 8 & 1, status >> 9 & 1);
    trace::test_pair(2, 2);

    let recorded = host.finish();
    assert_eq!(names(&recorded.events()), ["test_pair", "test_pair"]);
    assert_eq!(recorded.summary.lost, 0);
}

#[test]
fn a_thread_that_ends_returns_its_ring_without_loss() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    only(&host, "test_other");
    // The threads run one after another, and there are far more threads than rings.
    for n in 0..100 {
        let session = host.session.clone();
        let thread = std::thread::spawn(move || {
            assert!(session.attach(&format!("worker{n}")));
            trace::test_other(n);
        });
        thread.join().unwrap();
        // Each holder takes a block of the ring.
        host.session.begin_pass();
        host.session.end_pass();
    }

    let recorded = host.finish();
    let events = recorded.events();
    let own = events.iter().filter(|event| &*event.name == "test_other");
    let numbers: Vec<Value> = own.map(|event| event.fields[0].1.clone()).collect();
    assert_eq!(numbers, (0..100).map(Value::Unsigned).collect::<Vec<_>>());
    assert_eq!(recorded.summary.lost, 0);
}

#[test]
fn events_of_the_configuration_are_on_and_a_thread_attaches_to_the_installed_session_by_name() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let on = vec!["test_pair".parse().unwrap()];
    let config = SessionConfig::new(dir.path()).with(|config| config.events = on);
    set_declared(&"*".parse().unwrap(), false);
    let session = Session::create(config).unwrap();
    session.install();

    thread::spawn(|| {
        assert!(attach("vcpu7"));
        trace::test_other(1);
        trace::test_pair(2, 3);
    })
    .join()
    .unwrap();

    session.finish().unwrap();
    let events = events(dir.path());
    assert_eq!(names(&events), ["test_pair"]);
    let lease = events.iter().find(|event| &*event.name == "lease").unwrap();
    let vcpu7 = Value::Str("vcpu7".as_bytes().into());
    assert!(lease.fields.iter().any(|(_, value)| *value == vcpu7), "{lease:?}");
}
