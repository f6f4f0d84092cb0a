//! Regions of interest of a VMM's own threads.

use crate::alone;

use hypertrace_tests::host::{Host, geometry};
use hypertrace_timeline::{Event, Value};
use hypertrace_trace::region;

fn work(id: u64) {
    let _region = region!("host_work", id);
}

/// The names and ids of the events of regions.
fn ends(events: &[Event]) -> Vec<(&str, u64)> {
    let own = events.iter().filter(|event| event.name.starts_with("host_"));
    own.map(|event| match event.fields[..] {
        [(ref name, Value::Unsigned(id))] if &**name == "id" => (&*event.name, id),
        _ => panic!("{event:?}"),
    })
    .collect()
}

#[test]
fn a_region_is_its_beginning_and_its_end() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    host.session.attach("worker");
    host.session.set_events(&"host_*".parse().unwrap(), true).unwrap();

    {
        let _outer = region!("host_outer", 7);
        work(8);
    }

    let events = host.finish().events();
    let expected = [
        ("host_outer_begin", 7),
        ("host_work_begin", 8),
        ("host_work_end", 8),
        ("host_outer_end", 7),
    ];
    assert_eq!(ends(&events), expected);
}

#[test]
fn a_pattern_switches_a_region_and_the_list_names_each_event_once() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    host.session.attach("worker");
    host.session.execute("trace-event host_* on").unwrap();
    host.session.execute("trace-event host_work_* off").unwrap();

    work(1);
    // A second place with the name of `work`.
    drop(region!("host_work", 2));
    drop(region!("host_outer", 3));

    let listed = host.session.execute("info trace-events host_work_*").unwrap();
    assert_eq!(listed.trim(), "host_work_begin : state 0\nhost_work_end : state 0");
    let all = host.session.execute("trace-events-all").unwrap();
    assert_eq!(all.matches("host_work_begin(uint64_t id) \"id %\" PRIu64\n").count(), 1, "{all}");
    assert!(!all.contains('#'), "no clash: {all}");
    let events = host.finish().events();
    assert_eq!(ends(&events), [("host_outer_begin", 3), ("host_outer_end", 3)]);
}
