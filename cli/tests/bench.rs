//! `bench`: the shape of its rows. Times are for people to read, not for tests.

use std::process::Command;

use serde_json::Value;

/// Rows that need no KVM.
const ROWS: [&str; 7] = [
    "tsc",
    "ring_floor",
    "write_floor",
    "ring_emit",
    "ring_emit_disabled",
    "ring_drain_file",
    "device_reference_point",
];

#[test]
fn rows_have_times_ratios_and_verdicts() {
    let output = Command::new(env!("CARGO_BIN_EXE_hypertrace"))
        .args(["bench", "--runs", "1", "--json"])
        .args(ROWS)
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["machine"]["cpus"].as_u64().unwrap() > 0);
    let rows = report["rows"].as_array().unwrap();
    for name in ROWS {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        assert!(row["ns"].as_f64().is_some(), "{row}");
        assert_eq!(row["runs"], 1, "{row}");
        let compared = row["floor"].is_string();
        assert_eq!(row["ratio"].is_number(), compared, "{row}");
        assert_eq!(row["met"].is_boolean(), row["target"].is_string(), "{row}");
    }
}

#[test]
fn an_unknown_row_is_wrong_usage() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hypertrace")).args(["bench", "nosuch"]).output().unwrap();

    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("no row \"nosuch\"; there are tsc, "), "{text}");
}
