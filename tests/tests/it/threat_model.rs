//! The threat model: the tests that `threat-model.toml` names exist, and the page has the file's rows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use snapbox::Data;
use snapbox::assert::{Assert, DEFAULT_ACTION_ENV};

const FILE: &str = "tests/threat-model.toml";

/// A promise against a threat.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    threat: String,
    promise: String,
    /// Tests of the promise, each as `FILE: FUNCTION`. A promise without tests is not tested.
    tests: Vec<String>,
    /// Changes that remove the defence: `FILE: OLD -> NEW`, or `NUMBER in FILE: OLD -> NEW` for a number of
    /// the promise.
    #[serde(default)]
    mutants: Vec<String>,
}

#[test]
fn every_test_in_the_threat_model_exists() {
    let rows: Vec<Row> = sections().into_values().flatten().collect();
    assert!(rows.len() > 150, "{}", rows.len());
    for test in rows.iter().flat_map(|row| &row.tests) {
        let (file, name) = test.split_once(": ").unwrap_or_else(|| panic!("{test}"));
        let source = fs::read_to_string(root().join(file));
        let source = source.unwrap_or_else(|e| panic!("{FILE} names {file}: {e}"));
        assert!(source.contains(&format!("fn {name}(")), "{FILE} names {name}, not in {file}");
    }
}

#[test]
fn each_number_of_a_promise_has_a_mutant() {
    for Row { promise, mutants, .. } in
        sections().into_values().flatten().filter(|row| !row.tests.is_empty())
    {
        let mutants: Vec<&str> =
            mutants.iter().filter_map(|line| Some(line.split_once(" in ")?.0)).collect();
        for (at, number) in numbers_of(&promise) {
            let rest = &promise[at..];
            let is_noted = rest.split([';', ',']).next().unwrap().contains("*not tested*");
            let has_mutant = mutants.iter().any(|of| numbers_of(of).any(|(_, n)| n == number));
            assert!(is_noted || has_mutant, "no mutant changes {number} in: {promise}");
        }
    }
}

#[test]
fn the_page_has_the_rows_as_they_are() {
    let file = root().join("docs/threat-model.md");
    let page = with_rows(&fs::read_to_string(&file).unwrap());
    let assert = Assert::new().action_env(DEFAULT_ACTION_ENV).normalize_paths(false);
    assert.eq(page, Data::read_from(&file, None));
}

/// Returns the numbers in a text, with their places.
fn numbers_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_ascii_digit() || c == ',' || c == '.';
    let runs =
        text.split(move |c| !is_part(c)).filter(|run| run.contains(|c: char| c.is_ascii_digit()));
    runs.map(move |run| {
        (run.as_ptr() as usize - text.as_ptr() as usize, run.trim_end_matches([',', '.']))
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sections() -> BTreeMap<String, Vec<Row>> {
    toml::from_str(&fs::read_to_string(root().join(FILE)).unwrap()).unwrap()
}

/// Returns the page with each section's rows as a list below the section's mark.
fn with_rows(page: &str) -> String {
    let (mut sections, mut made) = (sections(), String::new());
    let mut section = None;
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            section = Some(name);
        }
        let is_row = line.starts_with("- *") && !line.starts_with("- **");
        if !is_row {
            made += &format!("{line}\n");
        }
        if line == "<!-- rows -->" {
            let rows = section.and_then(|name| sections.remove(name));
            for Row { threat, promise, tests, .. } in rows.unwrap_or_else(|| panic!("{section:?}"))
            {
                let tested = if tests.is_empty() { " (*not tested*)" } else { "" };
                made += &format!("- *{threat}*: {promise}{tested}\n");
            }
        }
    }
    assert!(sections.is_empty(), "no list of {:?}", sections.keys());
    made
}
