//! The JSON of the commands has the members and types that docs/json.md says.

use hypertrace_test_support::boots::booted;
use hypertrace_test_support::json_md::{Schemas, fits, schemas};
use hypertrace_tests::command::{Hypertrace, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns the names of the types that a value has.
fn types(value: &Value) -> &'static [&'static str] {
    match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["bool"],
        Value::Number(number) => {
            let size = number.as_u64().or(number.as_i64().map(i64::unsigned_abs));
            match size {
                // A double would round this number.
                Some(size) if size > 1 << 53 => &[],
                Some(_) => &["number", "integer"],
                None => &["number"],
            }
        }
        Value::String(text) => match text.parse::<i128>() {
            Ok(number) if number.unsigned_abs() > 1 << 53 => &["string", "integer"],
            _ => &["string"],
        },
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    }
}

fn walk(path: &str, value: &Value, see: &mut impl FnMut(&str, &Value)) {
    if !path.is_empty() {
        see(path, value);
    }
    match value {
        Value::Array(values) => {
            values.iter().for_each(|value| walk(&format!("{path}[]"), value, see));
        }
        Value::Object(values) => {
            let dot = if path.is_empty() { "" } else { "." };
            values.iter().for_each(|(name, value)| walk(&format!("{path}{dot}{name}"), value, see));
        }
        _ => {}
    }
}

/// Checks an output of a command, and notes its members.
fn check(schemas: &Schemas, seen: &mut BTreeSet<(String, String)>, command: &str, text: &str) {
    let schema = &schemas[command];
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(value["version"], 2, "{command}: {line}");
        walk("", &value, &mut |path, value| {
            let mut known = schema.iter().filter(|(known, types)| fits(known, types, path));
            let Some((name, documented)) = known.next() else {
                panic!("{command}: {path} is not documented: {line}");
            };
            let is_right = types(value).iter().any(|kind| documented.contains(*kind));
            assert!(is_right || documented.contains("any"), "{command}: {path} is {value}");
            seen.insert((command.to_owned(), name.clone()));
        });
    }
}

#[test]
fn each_member_is_documented_with_its_type() {
    let schemas = schemas();
    let mut seen = BTreeSet::new();
    // The golden files have the output of sessions that were made for the tests.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for folder in fs::read_dir(golden).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let mut command = "";
            for line in text.lines() {
                if let Some(line) = line.strip_prefix("$ hypertrace ") {
                    let lists = ["--names", "--events"].iter().any(|option| line.contains(option));
                    command = if lists { "info --names" } else { line.split(' ').next().unwrap() };
                } else if line.starts_with('{')
                    && !line.contains("[..]")
                    && schemas.contains_key(command)
                {
                    check(&schemas, &mut seen, command, line);
                }
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mut json = |command: &str, args: &[&str]| {
        let ran = run(HYPERTRACE.command([command, "--json"]).args(args).current_dir(dir.path()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        check(&schemas, &mut seen, command, &ran.stdout);
    };
    json("info", &["--machine"]);
    json("demo", &["-o", "S"]);
    for (command, args) in [
        ("report", &["S", "-n", "100"][..]),
        ("info", &["S"]),
        ("regions", &["S", "--by", "thread"]),
    ] {
        json(command, args);
    }
    let ran = run(HYPERTRACE.command(["info", "--names", "S", "--json"]).current_dir(dir.path()));
    check(&schemas, &mut seen, "info --names", &ran.stdout);
    let ran = run(HYPERTRACE.command(["regions", "--intervals", "S"]).current_dir(dir.path()));
    check(&schemas, &mut seen, "regions --intervals", &ran.stdout);
    let all = schemas.iter().flat_map(|(command, members)| {
        members.keys().map(|member| (command.clone(), member.clone()))
    });
    let mut marked = HYPERTRACE.command(["regions", "--json", "--mark", "kvm:kvm_exit"]);
    check(&schemas, &mut seen, "boot", &run(marked.arg(booted().path())).stdout);
    // Members that appear only for guests with a kernel of their own, function traces of regions, critical
    // paths, and failures.
    let rare = ["guest_kernels", "by.", "without_points", "why_not", "remedy", "detail", "path"];
    // The demo's threads may have no waits.
    let is_rare = |command: &str, member: &str| {
        rare.iter().any(|rare| member.contains(rare))
            || (command, &member[..member.len().min(4)]) == ("regions --intervals", "wait")
            || command == "boot" && member.contains(".waits[]")
    };
    let never = all.filter(|member| !seen.contains(member));
    let never = never.filter(|(command, member)| !is_rare(command, member));
    assert_eq!(Vec::from_iter(never), []);
}
