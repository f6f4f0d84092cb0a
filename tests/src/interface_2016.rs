//! Events of `tests/c/interface_2016.c`.

use serde_json::json;

use crate::report::Line;

/// Asserts that all events of this many clients are there, each with its client's number and its arguments,
/// in order.
#[track_caller]
pub fn check(lines: &[Line], clients: u64, events: u64, args: u64) {
    for client in 0..clients {
        let of_client = lines
            .iter()
            .filter(|line| line.event == "hypertrace" && line.number("client") == Some(client));
        let found = of_client.map(|line| line.fields["args"].clone());
        let expected = (0..events).map(|number| {
            let first = client << 32 | number;
            json!(Vec::from_iter((0..args).map(|arg| first + arg)))
        });
        assert_eq!(Vec::from_iter(found), Vec::from_iter(expected), "client {client}");
    }
}
