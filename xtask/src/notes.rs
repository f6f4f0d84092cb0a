//! Reports of the tests: results, ignored tests, and the capabilities that they used or missed.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{ContentArrangement, Table, presets};

use crate::probe::{Capability, MIRI, names};

/// Width of the table, independent of the terminal because logs have it too.
const WIDTH: u16 = 120;

/// Reports of all test programs of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Tests that passed
    pub passed: u64,
    /// Tests of programs that were killed or crashed before these tests ended
    pub unfinished: u64,
    /// Names of tests that failed
    pub failed: BTreeSet<String>,
    /// Names of tests that were ignored, with the reason if one is given
    pub ignored: BTreeSet<String>,
    /// Tests that used a capability, by capability
    pub used: BTreeMap<String, BTreeSet<String>>,
    /// Reasons why tests could not use a capability, by capability
    pub missing: BTreeMap<String, BTreeSet<String>>,
}

/// A test program that has not printed its result.
#[derive(Default)]
struct Running {
    announced: u64,
    ended: u64,
    passed: u64,
}

impl Notes {
    /// Reads the output of `cargo test`.
    pub fn read_output(&mut self, output: &str) {
        // The test programs that have not printed their result: a test may run another one.
        let mut running: Vec<Running> = Vec::new();
        for line in output.lines() {
            if let Some(announced) = announcement(line) {
                running.push(Running { announced, ..Running::default() });
            } else if let Some(result) = line.strip_prefix("test result: ") {
                self.passed += count(result, "passed");
                running.pop();
            } else if line.starts_with("     Running ") || line.starts_with("   Doc-tests ") {
                // Cargo starts the next one.
                self.give_up(&mut running);
            } else if let Some((name, result)) =
                line.strip_prefix("test ").and_then(|l| l.rsplit_once(" ... "))
            {
                if let Some(program) = running.last_mut() {
                    program.ended += 1;
                    program.passed += u64::from(result == "ok");
                }
                if result == "FAILED" {
                    self.failed.insert(name.to_owned());
                } else if result.starts_with("ignored") {
                    let reason = result.trim_start_matches("ignored");
                    self.ignored.insert(format!("{name}{reason}"));
                }
            }
            // A test may print while the harness is in the middle of its own line.
            for (kind, notes) in
                [("capability missing: ", &mut self.missing), ("capability used: ", &mut self.used)]
            {
                if let Some((_, text)) = line.split_once(kind) {
                    let in_name = |c: char| c.is_alphanumeric() || "-_+".contains(c);
                    let end = text.find(|c| !in_name(c)).unwrap_or(text.len());
                    let (name, text) = text.split_at(end);
                    insert(notes, name, text.trim_start_matches(':'));
                }
            }
        }
        self.give_up(&mut running);
    }

    /// Counts the tests of programs that printed no result.
    fn give_up(&mut self, running: &mut Vec<Running>) {
        for Running { announced, ended, passed } in running.drain(..) {
            self.passed += passed;
            self.unfinished += announced.saturating_sub(ended);
        }
    }

    /// Reads the file that `tests/src/capability.rs` writes.
    pub fn read_file(&mut self, text: &str) {
        for line in text.lines() {
            let (kind, rest) = line.split_once('\t').unwrap_or_default();
            let (name, text) = rest.split_once('\t').unwrap_or((rest, ""));
            match kind {
                "used" => insert(&mut self.used, name, text),
                "missing" => insert(&mut self.missing, name, text),
                _ => {}
            }
        }
    }

    /// Notes that a step of the test run used a capability.
    pub fn used_by_step(&mut self, name: &str, step: &str) {
        insert(&mut self.used, name, step);
    }

    /// Prints the reasons why tests could not use capabilities.
    pub fn print_missing(&self) {
        for (name, reasons) in &self.missing {
            for why in reasons {
                println!("not run for want of {name}: {why}");
            }
        }
    }

    /// Returns the required capabilities that are missing, unused, or reported missing by a test.
    pub fn violations(&self, capabilities: &[Capability], required: &[Required]) -> Vec<String> {
        let mut violations = Vec::new();
        for capability in capabilities {
            let name = capability.name;
            if !required.iter().any(|word| word.holds(capability)) {
                continue;
            }
            if let Err(why) = &capability.found {
                violations.push(format!("{name} is required and missing: {why}"));
                continue;
            }
            if !self.used.contains_key(name) {
                violations.push(format!("{name} was found and no test used it"));
            }
            for why in self.missing.get(name).into_iter().flatten() {
                violations.push(format!("{name} was found and a test says: {why}"));
            }
        }
        violations
    }

    /// Returns the table for the end of a run.
    pub fn table(&self, capabilities: &[Capability]) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_BORDERS_ONLY_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(WIDTH);
        table.set_header(["capability", "here", "used by tests", "detail"]);
        for capability in capabilities {
            let (here, detail) = match &capability.found {
                Ok(detail) => ("found", detail),
                Err(why) => ("missing", why),
            };
            table.add_row([capability.name, here, &self.uses(capability.name), detail]);
        }
        // Names without a probe. If one test used it and another missed it, both are shown.
        let mut reported: BTreeSet<_> = self.used.keys().chain(self.missing.keys()).collect();
        reported.retain(|name| !names().any(|probed| probed == *name));
        for name in reported {
            let here = if self.used.contains_key(name) { "found" } else { "missing" };
            table.add_row([name.as_str(), here, &self.uses(name), "reported by tests"]);
        }
        table
    }

    fn uses(&self, name: &str) -> String {
        match self.used.get(name) {
            Some(tests) => format!("yes, {}", tests.len()),
            None => "no".to_owned(),
        }
    }
}

fn insert(notes: &mut BTreeMap<String, BTreeSet<String>>, name: &str, text: &str) {
    notes.entry(name.trim().to_owned()).or_default().insert(text.trim().to_owned());
}

/// Returns the number of tests in `running 3 tests`.
fn announcement(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    rest.strip_suffix(" tests").or(rest.strip_suffix(" test"))?.parse().ok()
}

/// Returns the number before a word in `ok. 3 passed; 0 failed; 1 ignored; ..`.
fn count(result: &str, word: &str) -> u64 {
    result
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

/// Word of `--require`: a capability that must be found and used, or the run fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Required {
    /// All capabilities that this machine has, except for the one that only `cargo xtask full` uses
    Found,
    /// One capability
    Named(&'static str),
}

impl Required {
    /// Parses one word.
    ///
    /// # Errors
    /// If it is not a capability; the message lists the names.
    pub fn parse(word: &str) -> Result<Self, String> {
        if word == "found" {
            return Ok(Required::Found);
        }
        let name = names().find(|&name| name == word).map(Required::Named);
        let list = || names().collect::<Vec<_>>().join(", ");
        name.ok_or_else(|| format!("not one of: found, {}", list()))
    }

    fn holds(self, capability: &Capability) -> bool {
        match self {
            Required::Found => capability.found.is_ok() && capability.name != MIRI,
            Required::Named(name) => name == capability.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities() -> Vec<Capability> {
        let found = |name, detail: &str| Capability { name, found: Ok(detail.to_owned()) };
        let missing = Capability { name: "tracefs", found: Err("not mounted".to_owned()) };
        vec![found("kvm", "API 12"), missing, found("babeltrace2", "2.0.4")]
    }

    #[test]
    fn results_of_all_test_programs_are_added() {
        let mut notes = Notes::default();
        notes.read_output(
            "running 3 tests
test ring::full ... ok
test ring::kvm ... ignored, needs a disk
test src/lib.rs - emit (line 3) ... ignored
test ring::order ... FAILED
test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.0s
",
        );
        assert_eq!(notes.passed, 13);
        assert_eq!(notes.failed, ["ring::order".to_owned()].into());
        let ignored = ["ring::kvm, needs a disk", "src/lib.rs - emit (line 3)"];
        assert_eq!(notes.ignored, ignored.map(str::to_owned).into());
    }

    #[test]
    fn tests_of_a_program_that_was_killed_are_counted() {
        let mut notes = Notes::default();
        notes.read_output(
            "running 4 tests
test one ... ok
test two ... ignored
     Running tests/next.rs
running 1 test
test next ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
     Running tests/last.rs
running 3 tests
test three ... FAILED
",
        );
        assert_eq!((notes.passed, notes.failed.len(), notes.unfinished), (2, 1, 4));
    }

    #[test]
    fn a_test_may_run_a_test_program() {
        let mut notes = Notes::default();
        notes.read_output(
            "running 2 tests
test one ... ok
running 1 test
test child ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 5 filtered out; finished in 0.1s
test two ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
",
        );
        assert_eq!((notes.passed, notes.unfinished), (3, 0));
    }

    #[test]
    fn capabilities_are_read_from_the_file_and_from_the_output_once() {
        let mut notes = Notes::default();
        notes.read_file("used\tkvm\tdemo::boots\nused\tkvm\tdemo::stamps\nmissing\ttracefs\tnot root\nbroken line\n");
        notes.read_output(
            "test x ... capability missing: tracefs: not root\ncapability used: kvm: demo::boots\ncapability missing: disk (too small)\n",
        );

        assert_eq!(notes.used["kvm"].len(), 2);
        assert_eq!(notes.missing["tracefs"], ["not root".to_owned()].into());
        assert_eq!(notes.missing["disk"], ["(too small)".to_owned()].into());
    }

    #[test]
    fn what_is_here_must_be_used() {
        let mut notes = Notes::default();
        notes.used_by_step("kvm", "demo");

        let wrong = notes.violations(&capabilities(), &[Required::Found]);

        assert_eq!(wrong, ["babeltrace2 was found and no test used it"]);
        assert!(notes.violations(&capabilities(), &[]).is_empty());
    }

    #[test]
    fn miri_is_used_by_the_full_run_alone() {
        let miri = [Capability { name: MIRI, found: Ok("0.1".to_owned()) }];
        let notes = Notes::default();

        assert!(notes.violations(&miri, &[Required::Found]).is_empty());
        assert_eq!(notes.violations(&miri, &[Required::Named(MIRI)]).len(), 1);
    }

    #[test]
    fn what_is_named_must_be_here() {
        let wrong = Notes::default().violations(&capabilities(), &[Required::Named("tracefs")]);
        assert_eq!(wrong, ["tracefs is required and missing: not mounted"]);
        assert_eq!(Required::parse("tracefs"), Ok(Required::Named("tracefs")));
        assert!(Required::parse("kwm").is_err());
    }

    #[test]
    fn a_test_that_missed_what_is_here_is_reported() {
        let mut notes = Notes::default();
        notes.read_file("used\tkvm\ta\nmissing\tkvm\tbusy\n");
        let wrong = notes.violations(&capabilities(), &[Required::Named("kvm")]);
        assert_eq!(wrong, ["kvm was found and a test says: busy"]);
    }

    #[test]
    fn the_table_has_a_row_for_each_and_for_what_only_tests_know() {
        let mut notes = Notes::default();
        notes.read_file("used\tkvm\ta\nused\tkvm\tb\nmissing\tdisk\tsmall\n");

        let table = notes.table(&capabilities()).to_string();

        let cells = |name: &str| -> Vec<String> {
            let row = table.lines().find(|line| line.contains(name));
            let row = row.unwrap_or_else(|| panic!("no {name} in\n{table}"));
            let words = row.trim_matches(['|', ' ']).split("  ");
            words.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
        };
        assert_eq!(cells("kvm"), ["kvm", "found", "yes, 2", "API 12"]);
        assert_eq!(cells("tracefs"), ["tracefs", "missing", "no", "not mounted"]);
        assert_eq!(cells("disk"), ["disk", "missing", "no", "reported by tests"]);
    }
}
