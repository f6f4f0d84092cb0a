//! The samples of many sessions, read by DuckDB and by Spark as `examples/fleet` does it.

use hypertrace_test_support::made::{Made, Packet};
use hypertrace_test_support::vcpu::{self, Vcpu};
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::{build, capability};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::pipe;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Parts of time that have a column in the samples.
const PARTS: [&str; 13] = [
    "on_cpu",
    "guest",
    "host_interrupt",
    "kernel",
    "vmm",
    "stolen",
    "behind",
    "runnable",
    "halted",
    "blocked",
    "off_cpu",
    "idle",
    "unknown",
];

/// Makes sessions of two builds on two hosts, and their samples, as `examples/fleet/README.md` says. Returns
/// the folder, and the output of `regions --json` by host, build and session.
fn fleet() -> (TempDir, BTreeMap<[String; 3], Value>) {
    let folder = tempfile::tempdir().unwrap();
    let mut said = BTreeMap::new();
    for number in 0..4 {
        let vcpus = [Vcpu::rounds(number, 150 + u64::from(number), 5)];
        let made = vcpu::session(&vcpus);
        made.kernel(&vcpu::trace(&vcpus, |_| true));
        // A build's name may look like a number.
        let [host, build] = [format!("h{}", number / 2), format!("1.{}0", number % 2)];
        let name = format!("S{number}");
        add(folder.path(), [&host, &build, &name], &made, &[]);
        let json = run(HYPERTRACE.command(["regions", "--json"]).arg(made.path())).json();
        said.insert([host, build, name], json);
    }
    (folder, said)
}

/// Adds the samples of a session to a fleet.
fn add(fleet: &Path, [host, build, name]: [&str; 3], made: &Made, options: &[&str]) {
    let folder = fleet.join(format!("csv/host={host}/build={build}"));
    fs::create_dir_all(&folder).unwrap();
    let samples = run(HYPERTRACE.command(["regions", "--samples"]).args(options).arg(made.path()));
    assert_eq!(samples.code, Some(0), "{samples:?}");
    fs::write(folder.join(format!("{name}.csv")), samples.stdout).unwrap();
}

/// Runs `ask.py`. Returns what the script prints.
fn ask(python: &Path, fleet: &Path, options: &[&str]) -> String {
    let script = build::root().join("examples/fleet/ask.py");
    let ran = run(Command::new(python).arg(script).arg(fleet).args(options));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.stdout
}

/// Values by column.
type Row<'a> = BTreeMap<&'a str, &'a str>;

/// Returns the rows of a table. The table's first line names the columns, and each further line is a row.
fn rows(lines: &str) -> Vec<Row<'_>> {
    let (columns, rows) = lines.split_once('\n').unwrap_or((lines, ""));
    rows.lines().map(|line| columns.split(',').zip(line.split(',')).collect()).collect()
}

/// Returns the rows of the answer to each question.
fn answers(text: &str) -> Vec<Vec<Row<'_>>> {
    text.trim_end().split("\n\n").map(rows).collect()
}

/// Returns the samples in the files of a fleet.
fn samples(fleet: &Path, sessions: impl IntoIterator<Item = [String; 3]>) -> Vec<Sample> {
    let mut all = Vec::new();
    for [host, build, name] in sessions {
        let file = fleet.join(format!("csv/host={host}/build={build}/{name}.csv"));
        let text = fs::read_to_string(file).unwrap();
        for row in rows(&text) {
            let number = |column: &str| row[column].parse::<f64>().unwrap();
            all.push(Sample {
                session: name.clone(),
                id: row["id"].to_owned(),
                duration: number("duration_ns"),
                parts: PARTS.map(|part| number(&format!("{part}_ns"))),
            });
        }
    }
    all
}

struct Sample {
    session: String,
    id: String,
    duration: f64,
    parts: [f64; PARTS.len()],
}

/// Returns the share of the durations' variance that a part explains.
fn share(samples: &[Sample], part: usize) -> f64 {
    let mean = |value: &dyn Fn(&Sample) -> f64| {
        samples.iter().map(value).sum::<f64>() / samples.len() as f64
    };
    let (durations, parts) = (mean(&|s| s.duration), mean(&|s| s.parts[part]));
    let covariance = mean(&|s| (s.parts[part] - parts) * (s.duration - durations));
    covariance / mean(&|s| (s.duration - durations).powi(2))
}

#[test]
fn a_reader_that_wants_no_more_is_no_error() {
    let Some(python) = capability::program("python3-duckdb") else { return };
    let (fleet, _) = fleet();
    let script = build::root().join("examples/fleet/ask.py");
    let (reader, writer) = pipe().unwrap();
    drop(reader);

    let asked = Command::new(python).arg(script).arg(fleet.path()).stdout(writer).output().unwrap();

    let said = String::from_utf8(asked.stderr).unwrap();
    assert_eq!((asked.status.code(), &*said), (Some(0), ""));
    capability::used("python3-duckdb");
}

#[test]
fn what_is_missing_is_said_in_a_line() {
    let Some(python) = capability::program("python3") else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = build::root().join("examples/fleet/ask.py");
    // -S makes Python find no packages.
    let says = |options: &[&str]| {
        let mut command = Command::new(&python);
        let ran = run(command.arg("-S").arg(&script).arg(".").args(options).current_dir(&folder));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.stderr
    };

    let no_csv =
        "no files ./csv/host=*/build=*/*.csv*: the README.md beside ask.py has the commands";
    assert_eq!(says(&[]), format!("ask.py: {no_csv}\n"));
    let no_parquet = "no files ./parquet/*/*/*.parquet: --write-parquet makes them";
    assert_eq!(says(&["--parquet"]), format!("ask.py: {no_parquet}\n"));
    let samples = folder.path().join("csv/host=h/build=b");
    fs::create_dir_all(&samples).unwrap();
    fs::write(samples.join("S.csv"), "").unwrap();
    assert_eq!(says(&[]), "ask.py: no duckdb: pip install duckdb\n");
    assert_eq!(says(&["--spark"]), "ask.py: no pyspark: pip install pyspark\n");
    capability::used("python3");
}

#[test]
fn duckdb_answers_what_regions_says() {
    let Some(python) = capability::program("python3-duckdb") else { return };
    let (fleet, said) = fleet();

    let text = ask(&python, fleet.path(), &[]);
    let [quantiles, spread, slowest] = answers(&text).try_into().unwrap();

    assert_eq!(quantiles.len(), said.len(), "{text}");
    for (row, ([host, build, _], json)) in quantiles.iter().zip(&said) {
        let group = &json["regions"][0];
        let columns = ["count", "p50_ns", "p99_ns"].map(|key| group[key].to_string());
        let [count, p50, p99] = columns.each_ref().map(String::as_str);
        let expected = [
            ("name", "batch"),
            ("host", host),
            ("build", build),
            ("regions", count),
            ("p50_ns", p50),
            ("p99_ns", p99),
        ];
        assert_eq!(*row, BTreeMap::from(expected));
    }

    let samples = samples(fleet.path(), said.keys().cloned());
    let shares: BTreeMap<_, f64> =
        spread.iter().map(|row| (row["part"], row["share"].parse().unwrap())).collect();
    for (number, part) in PARTS.into_iter().enumerate() {
        let (share, expected) = (shares[part], share(&samples, number));
        assert!((share - expected).abs() < 1e-4, "{part}: {share}, {expected}");
    }
    assert!((shares.values().sum::<f64>() - 1.0).abs() < 1e-3, "{shares:?}");
    let largest = shares.values().copied().fold(0.0, f64::max);
    assert!(largest > 0.5 && shares[spread[0]["part"]] == largest, "{spread:?}");

    let mut sorted = Vec::from_iter(&samples);
    sorted.sort_by(|a, b| b.duration.total_cmp(&a.duration));
    assert_eq!(slowest.len(), 10, "{text}");
    for (row, sample) in slowest.iter().zip(sorted) {
        let most = sample.parts.iter().copied().fold(0.0, f64::max);
        let mostly = PARTS[sample.parts.iter().position(|time| *time == most).unwrap()];
        let duration = sample.duration.to_string();
        let expected = [&duration, mostly, &sample.session, &sample.id];
        assert_eq!(["duration_ns", "mostly", "session", "id"].map(|column| row[column]), expected);
        let [host, build, _] = said.keys().find(|[.., name]| *name == sample.session).unwrap();
        assert_eq!([row["host"], row["build"]], [host, build]);
        assert_eq!(row["session_uuid"], "a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5");
    }

    // Parquet files give the same answers, also if older files are replaced.
    for _ in 0..2 {
        ask(&python, fleet.path(), &["--write-parquet"]);
    }
    fs::remove_dir_all(fleet.path().join("csv")).unwrap();
    assert_eq!(ask(&python, fleet.path(), &["--parquet"]), text);
    capability::used("python3-duckdb");
}

/// Values that a guest may give, and the text of each in a cell.
const VALUES: [(&[u8], &str); 12] = [
    (b"plain", "plain"),
    (b"a,b", "a,b"),
    (b"\"quoted\"", "\"quoted\""),
    (b"\"", "\""),
    (b"back\\slash\\", "back\\\\slash\\\\"),
    (b"\\\"", "\\\\\""),
    (b"two\r\nlines", "two\\r\\nlines"),
    (b"\t=1", "\\t=1"),
    (b"=1+1", "'=1+1"),
    (b"@SUM(1)", "'@SUM(1)"),
    ("\u{ff1d}1".as_bytes(), "'\u{ff1d}1"),
    (b"\xff\0", "\u{fffd}\\x00"),
];

/// Makes a fleet of a session with these values. Returns the fleet, and the expected answer to
/// [`ALL_VALUES`].
fn values() -> (TempDir, String) {
    let events = r#"[
        {"id":16,"schema":"read_begin(id:u64,v:str)","reference_point":false},
        {"id":17,"schema":"read_end(id:u64)","reference_point":false}]"#;
    let begin = Packet::new(1, 0, 0);
    let packet = VALUES.iter().zip((1_000..).step_by(1_000)).fold(begin.clone(), |packet, one| {
        let ((value, _), at) = one;
        // The largest ids do not fit in an i64.
        packet.event_str(at, 16, &[u64::MAX - at], value).event(at + 10, 17, &[u64::MAX - at])
    });
    let made = Made::of_programs(events).stream("guest-000-0000", &[begin, packet]);
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), ["h", "b", "S"], &made, &["--by", "v"]);
    let quoted = |text: &str| match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    let rows = VALUES.iter().zip((1_000..).step_by(1_000));
    let rows = rows.map(|((_, text), at)| format!("{},{}\n", quoted(text), u64::MAX - at));
    (folder, format!("value,id\n{}\n", rows.collect::<String>()))
}

const ALL_VALUES: [&str; 2] = ["--sql", "SELECT value, id FROM samples ORDER BY begin_ns"];

/// Prints these columns as `ask.py` does.
const BY_CSV: &str = "\
import csv, sys
out = csv.writer(sys.stdout, lineterminator='\\n')
out.writerow(['value', 'id'])
out.writerows((row['by'], row['id']) for row in csv.DictReader(open(sys.argv[1], newline='')))
out.writerow([])
";

#[test]
fn readers_of_samples_read_what_was_written() {
    let (fleet, expected) = values();

    let file: PathBuf = fleet.path().join("csv/host=h/build=b/S.csv");
    if let Some(python) = capability::program("python3") {
        let read = run(Command::new(python).args(["-c", BY_CSV]).arg(file)).ok();
        assert_eq!(read, expected);
        capability::used("python3");
    }
    if let Some(python) = capability::program("python3-duckdb") {
        assert_eq!(ask(&python, fleet.path(), &ALL_VALUES), expected);
        capability::used("python3-duckdb");
    }
}

#[test]
fn a_fleet_for_trials_says_that_it_is_made_up() {
    let Some(python) = capability::program("python3-duckdb") else { return };
    let (fleet, said) = fleet();
    let samples = said.keys().map(|[host, build, name]| {
        fleet.path().join(format!("csv/host={host}/build={build}/{name}.csv"))
    });
    let trial = fleet.path().join("trial");
    let script = build::root().join("examples/fleet/make.py");
    let options = ["--sessions", "6", "--regions", "200", "--hosts", "2", "--gzip", "-o"];
    run(Command::new(&python).arg(script).args(samples).args(options).arg(&trial)).ok();

    let sql = "SELECT host, build, count(*), count(DISTINCT session), count(DISTINCT session_uuid), \
               min(session_uuid) <> 'a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5' \
               FROM samples GROUP BY host, build ORDER BY host, build";
    let text = ask(&python, &trial, &["--sql", sql]);

    let rows: Vec<&str> = text.lines().skip(1).filter(|line| !line.is_empty()).collect();
    let expected = [
        "made-up-0,made-up-0,400,2,2,True",
        "made-up-0,made-up-1,200,1,1,True",
        "made-up-1,made-up-0,400,2,2,True",
        "made-up-1,made-up-1,200,1,1,True",
    ];
    assert_eq!(rows, expected, "{text}");
}

#[test]
#[ignore = "Spark takes a minute to start: cargo xtask full"]
fn spark_answers_as_duckdb_does() {
    let programs = ["python3-duckdb", "python3-pyspark"].map(capability::program);
    let [Some(duckdb), Some(spark)] = programs else { return };
    let (fleet, said) = fleet();
    let on_spark = |fleet: &Path, more: &[&str]| {
        ask(&spark, fleet, &[&["--spark", "--master", "local[1]"], more].concat())
    };

    let text = ask(&duckdb, fleet.path(), &[]);
    assert_eq!(on_spark(fleet.path(), &[]), text);
    assert_eq!(answers(&text)[0].len(), said.len(), "{text}");

    ask(&duckdb, fleet.path(), &["--write-parquet"]);
    assert_eq!(on_spark(fleet.path(), &["--parquet"]), text);
    let (fleet, expected) = values();
    assert_eq!(on_spark(fleet.path(), &ALL_VALUES), expected);
    capability::used("python3-pyspark");
}
