//! Regions of interest of a VMM's own threads.

use crate::alone;

use hypertrace_test_support::kept::{Event, Value};
use hypertrace_tests::host::{Host, geometry};
use hypertrace_trace::region;

fn work(id: u64) {
    let _region = region!("host_work", id);
}

/// Returns the names and ids of the regions' events.
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
        let _outer = region!("host_outer", id = 7);
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
fn a_region_has_fields_and_an_id_that_its_thread_counts() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    host.session.attach("worker");
    host.session.set_events(&"fields_*".parse().unwrap(), true).unwrap();
    let (queue, disk, id) = (3, "sd\na", 77);

    {
        let _outer = region!("fields_outer", queue, disk: str);
        drop(region!("fields_outer", queue = queue + 1, disk: str = String::from("b")));
        drop(region!("fields_said", id, queue));
        drop(region!("fields_bare"));
    }
    host.session.set_events(&"fields_bare_begin".parse().unwrap(), false).unwrap();
    drop(region!("fields_bare"));

    let all = host.session.execute("trace-events-all").unwrap();
    let declaration = "fields_outer_begin(uint64_t id, uint64_t queue, const char *disk) \
                       \"id %\" PRIu64 \" queue %\" PRIu64 \" disk %s\"\n";
    assert!(all.contains(declaration), "{all}");
    let events = host.finish().events();
    let shown = |event: &Event| {
        let value = |value: &Value| match value {
            Value::Unsigned(n) => n.to_string(),
            Value::Str(text) => String::from_utf8_lossy(text).into_owned(),
            other => panic!("{other:?}"),
        };
        let fields = event.fields.iter().map(|(name, of)| format!(" {name} {}", value(of)));
        format!("{}{}", event.name, fields.collect::<String>())
    };
    let own = events.iter().filter(|event| event.name.starts_with("fields_"));
    let expected = [
        "fields_outer_begin id 1 queue 3 disk sd\na",
        "fields_outer_begin id 2 queue 4 disk b",
        "fields_outer_end id 2",
        "fields_said_begin id 77 queue 3",
        "fields_said_end id 77",
        "fields_bare_begin id 3",
        "fields_bare_end id 3",
        "fields_outer_end id 1",
        // The event for this region's begin is switched off.
        "fields_bare_end id 0",
    ];
    assert_eq!(Vec::from_iter(own.map(shown)), expected);
}

#[test]
fn a_pattern_switches_a_region_and_the_list_names_each_event_once() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    host.session.attach("worker");
    host.session.execute("trace-event host_* on").unwrap();
    host.session.execute("trace-event host_work_* off").unwrap();

    work(1);
    // This is a second place with the name of the region in `work`.
    drop(region!("host_work", id = 2));
    drop(region!("host_outer", id = 3));

    let listed = host.session.execute("info trace-events host_work_*").unwrap();
    assert_eq!(listed.trim(), "host_work_begin : state 0\nhost_work_end : state 0");
    let all = host.session.execute("trace-events-all").unwrap();
    assert_eq!(all.matches("host_work_begin(uint64_t id) \"id %\" PRIu64\n").count(), 1, "{all}");
    assert!(!all.contains('#'), "no clash: {all}");
    let events = host.finish().events();
    assert_eq!(ends(&events), [("host_outer_begin", 3), ("host_outer_end", 3)]);
}
