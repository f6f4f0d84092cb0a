//! Reports of the tests (which capabilities of this machine the tests used or missed), and the table of these
//! reports.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{ContentArrangement, Table, presets};

use crate::probe::{Capability, is_known, names};

/// Width of tables in columns. The width does not depend on the terminal, because a run may also write its
/// tables to a log.
const WIDTH: u16 = 80;

/// Returns a table without rows.
pub fn table(header: [&str; 4]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_BORDERS_ONLY_CONDENSED).set_header(header);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table
}

/// Reported texts by capability.
type Texts = BTreeMap<String, BTreeSet<String>>;

/// Reports of tests.
#[derive(Debug, Default)]
pub struct Notes {
    /// Tests that used a capability
    pub used: Texts,
    /// Reasons why tests could not use a capability
    pub missing: Texts,
}

impl Notes {
    /// Reads the text that `tests/support/src/capability.rs` writes.
    pub fn read(text: &str) -> Self {
        let mut notes = Notes::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once('\t').unwrap_or_default();
            let (name, text) = rest.split_once('\t').unwrap_or((rest, ""));
            match kind {
                "used" => insert(&mut notes.used, name, text),
                "missing" => insert(&mut notes.missing, name, text),
                _ => {}
            }
        }
        notes
    }

    /// Adds the reports of other tests.
    pub fn add(&mut self, other: Notes) {
        for (all, others) in [(&mut self.used, other.used), (&mut self.missing, other.missing)] {
            others.into_iter().for_each(|(name, texts)| all.entry(name).or_default().extend(texts));
        }
    }

    /// Notes that a step of the test run used a capability.
    pub fn used_by_step(&mut self, name: &str, step: &str) {
        insert(&mut self.used, name, step);
    }

    /// Returns filters for libtest that select the tests that used one of these capabilities. A filter
    /// selects all tests of a module. In the modules `slow`, a filter selects a single test.
    pub fn filters(&self, names: &[&str], slow: &[&str]) -> BTreeSet<String> {
        let tests = names.iter().filter_map(|name| self.used.get(*name)).flatten();
        let filter = |test: &String| {
            let (module, _) = test.rsplit_once("::")?;
            Some(if slow.contains(&module) { test.clone() } else { format!("{module}::") })
        };
        tests.filter_map(filter).collect()
    }

    /// Prints the reasons why tests could not use capabilities.
    pub fn print_missing(&self) {
        for (name, reasons) in &self.missing {
            reasons.iter().for_each(|why| println!("not run for want of {name}: {why}"));
        }
    }

    /// Returns the violations: required capabilities that are missing, that no test has used, or that a test
    /// has reported as missing.
    pub fn violations(&self, capabilities: &[Capability], required: &[Required]) -> Vec<String> {
        let mut violations = Vec::new();
        for capability in capabilities {
            let name = &capability.name;
            if !required.iter().any(|word| word.holds(capability)) {
                continue;
            }
            if let Err(why) = &capability.found {
                violations.push(format!("{name} is required and missing: {why}"));
                continue;
            }
            let is_found = |name| capabilities.iter().any(|c| c.name == name && c.found.is_ok());
            if !self.used.contains_key(name) && capability.with.is_none_or(is_found) {
                violations.push(format!("{name} was found and no test used it"));
            }
            for why in self.missing.get(name).into_iter().flatten() {
                violations.push(format!("{name} was found and a test says: {why}"));
            }
        }
        violations
    }

    /// Returns the table for the end of a run. If only some tests have run (`of_some`), then the table
    /// contains only the capabilities that these tests reported.
    pub fn table(&self, capabilities: &[Capability], of_some: bool) -> Table {
        let mut table = table(["capability", "here", "used by tests", "detail"]);
        let here = |found| if found { "found" } else { "missing" };
        let uses = |name: &str| {
            self.used.get(name).map_or("no".to_owned(), |tests| format!("yes, {}", tests.len()))
        };
        let is_reported =
            |name: &String| self.used.contains_key(name) || self.missing.contains_key(name);
        for Capability { name, found, .. } in capabilities {
            if of_some && !is_reported(name) {
                continue;
            }
            let (Ok(detail) | Err(detail)) = found;
            table.add_row([name, here(found.is_ok()), &uses(name), detail]);
        }
        // Tests have also reported names that have no probe. If one test used such a capability, and another
        // test missed the capability, then the table shows both reports.
        let reported: BTreeSet<_> = self.used.keys().chain(self.missing.keys()).collect();
        for name in reported.into_iter().filter(|name| !is_known(name)) {
            table.add_row([
                name,
                here(self.used.contains_key(name)),
                &uses(name),
                "reported by tests",
            ]);
        }
        table
    }
}

fn insert(texts: &mut Texts, name: &str, text: &str) {
    texts.entry(name.to_owned()).or_default().insert(text.to_owned());
}

/// Word of `--require`. The word names one capability, or all that were found. The run fails unless each of
/// these capabilities was found and used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Required {
    /// All capabilities that this machine has, except for those that only `cargo xtask full` uses
    Found,
    /// The capability of this name
    Named(String),
}

impl Required {
    /// Parses one word.
    ///
    /// # Errors
    /// If the word is not a capability; the message lists the names.
    pub fn parse(word: &str) -> Result<Self, String> {
        match word {
            "found" => Ok(Required::Found),
            name if is_known(name) => Ok(Required::Named(name.to_owned())),
            _ => Err(format!("not one of: found, {}", names().collect::<Vec<_>>().join(", "))),
        }
    }

    fn holds(&self, capability: &Capability) -> bool {
        match self {
            Required::Found => capability.found.is_ok() && !capability.full,
            Required::Named(name) => *name == capability.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, full: bool, found: Result<&str, &str>) -> Capability {
        Capability {
            name: name.to_owned(),
            full,
            with: (name == "linker").then_some("compiler"),
            found: found.map(str::to_owned).map_err(str::to_owned),
        }
    }

    fn capabilities() -> Vec<Capability> {
        vec![
            of("kvm", false, Ok("API 12")),
            of("tracefs", false, Err("not mounted")),
            of("babeltrace2", false, Ok("2.0.4")),
            of("miri", true, Ok("0.1")),
        ]
    }

    #[test]
    fn what_tests_use_with_another_alone_is_not_required_without_it() {
        let with = |compiler| {
            let all = [of("linker", false, Ok("2.40")), of("compiler", false, compiler)];
            Notes::default().violations(&all, &[Required::Found])
        };

        assert!(with(Err("the archive has none")).is_empty());
        let wrong = with(Ok("1.96"));
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }

    #[test]
    fn what_is_here_must_be_used_but_for_what_the_full_run_uses() {
        let mut notes = Notes::default();
        notes.used_by_step("kvm", "demo");

        let wrong = notes.violations(&capabilities(), &[Required::Found]);

        assert_eq!(wrong, ["babeltrace2 was found and no test used it"]);
        assert!(notes.violations(&capabilities(), &[]).is_empty());
    }

    #[test]
    fn what_is_named_must_be_here_and_not_missed_by_any_test() {
        let named = |name: &str| [Required::parse(name).unwrap()];
        let notes = Notes::read("used\tkvm\ta\nmissing\tkvm\tbusy\nbroken line\n");

        let violations = |name| notes.violations(&capabilities(), &named(name));

        assert_eq!(violations("tracefs"), ["tracefs is required and missing: not mounted"]);
        assert_eq!(violations("kvm"), ["kvm was found and a test says: busy"]);
        assert_eq!(violations("miri"), ["miri was found and no test used it"]);
        assert!(Required::parse("kwm").is_err());
    }

    #[test]
    fn modules_of_tests_are_filters_but_for_slow_ones() {
        let notes =
            Notes::read("used\tkvm\ta::b::x\nused\tkvm\tslow::y\nused\tjq\tc::z\nused\tkvm\tmain");

        let filters = notes.filters(&["kvm", "tracefs"], &["slow"]);

        assert_eq!(Vec::from_iter(filters), ["a::b::", "slow::y"]);
    }

    #[test]
    fn the_table_has_a_row_for_each_and_for_what_only_tests_know() {
        let mut notes = Notes::read("used\tkvm\ta\nmissing\tdisk\tsmall\n");
        notes.add(Notes::read("used\tkvm\ta\nused\tkvm\tb\n"));

        let table = notes.table(&capabilities(), false).to_string();

        let cells = |name: &str| -> Vec<String> {
            let row = table.lines().find(|line| line.contains(name));
            let row = row.unwrap_or_else(|| panic!("no {name} in\n{table}"));
            let words = row.trim_matches(['|', ' ']).split("  ");
            words.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
        };
        assert_eq!(cells("kvm"), ["kvm", "found", "yes, 2", "API 12"]);
        assert_eq!(cells("tracefs"), ["tracefs", "missing", "no", "not mounted"]);
        assert_eq!(cells("disk"), ["disk", "missing", "no", "reported by tests"]);
        let of_some = notes.table(&capabilities(), true).to_string();
        assert!(of_some.contains("kvm") && !of_some.contains("tracefs"), "{of_some}");
    }
}
