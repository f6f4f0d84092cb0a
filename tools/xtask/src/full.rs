//! `cargo xtask full`: checks at full size. These checks take too long to run for each change.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::probe::{self, Machine};
use crate::step::{Limit, OK, Steps};
use crate::suite::LOOM;
use crate::tree;

/// Contents of `full.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    words: BTreeMap<String, String>,
    check: Vec<Check>,
}

/// A check: its name in the table, and the line of its command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    name: String,
    line: String,
}

/// Options of the full run
#[derive(clap::Args)]
pub struct Options {
    /// Run only checks whose line of the table contains this text
    #[arg(long, default_value = "", hide_default_value = true)]
    only: String,

    /// Seconds that each fuzz target runs
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    fuzz: u32,

    #[command(flatten)]
    limit: Limit,
}

/// Runs all checks, and prints a line for each. Returns false if a check failed or could not be run.
///
/// # Errors
/// If the machine cannot run commands; a failed check is not an error.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let mut checks = checks();
    for target in tree::entries(&root.join("tools/fuzz/fuzz_targets"))? {
        let name = target.file_stem().unwrap_or_default().display().to_string();
        let line = format!(
            "CARGO_TARGET_DIR=target/fuzz rustup run nightly cargo fuzz run --fuzz-dir tools/fuzz {name} \
             -- -max_total_time={} -len_control=0",
            options.fuzz
        );
        checks.push(Check { name: format!("fuzz target {name}"), line });
    }
    checks.retain(|check| check.name.contains(&options.only));
    ensure!(!checks.is_empty(), "no check has {:?} in its line", options.only);

    let machine = Machine::probe(&probe::names().collect::<Vec<_>>());
    let mut steps = Steps::begin(root, machine, options.limit)?;
    let mut figures = Vec::new();
    for Check { name, line } in checks {
        let needs = [("cargo miri", "miri"), ("cargo fuzz", "cargo-fuzz"), ("rustup", "nightly")];
        let needed = needs.iter().find(|(words, _)| line.contains(words));
        if let Some(Err(why)) = needed.map(|(_, capability)| steps.machine.found(capability)) {
            steps.skip(&name, &why);
            steps.fail(format!("{name}: not run: {why}"));
            continue;
        }
        let ran = steps.test(&name, &line)?;
        let is_figure = |line: &&str| line.starts_with("figure: ");
        figures.extend(ran.output.lines().filter(is_figure).map(str::to_owned));
        ran.notes.print_missing();
        // Only this check runs the tests of such a line. If a capability was missing, these tests did not
        // run, so the check did not run either.
        let is_only = line.contains("--exact") || line.contains("--include-ignored");
        let missing = ran.notes.missing.keys().next().filter(|_| is_only);
        let verdict = match missing {
            Some(missing) if ran.ok => format!("not run: no {missing}"),
            _ => ran.verdict().to_owned(),
        };
        steps.row(&name, &ran, &verdict, verdict == OK);
    }
    figures.iter().for_each(|figure| println!("{figure}"));
    Ok(steps.conclude())
}

/// Returns the checks of `full.toml`. The words in braces in the checks' commands are replaced by their
/// texts.
fn checks() -> Vec<Check> {
    let mut known: Known =
        toml::from_str(include_str!("../full.toml")).expect("tools/xtask/full.toml is right");
    known.words.insert("loom".to_owned(), LOOM.to_owned());
    for check in &mut known.check {
        for (word, text) in &known.words {
            check.line = check.line.replace(&format!("{{{word}}}"), text);
        }
    }
    known.check
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_tests_of_checks_exist() {
        let root = crate::root().unwrap();
        let files = ["cli/tests/it", "tests/tests/it", "qemu/plugin/tests/it", "tools/xtask/src"];
        let mut named = 0;
        for check in checks() {
            assert!(!check.line.contains(['{', '}']), "{}", check.line);
            let tests = check.line.split_whitespace().filter(|_| check.line.contains("--exact"));
            for (module, test) in tests.filter_map(|word| word.split_once("::")) {
                let file = |folder| root.join(folder).join(module).with_extension("rs");
                let texts = files.iter().filter_map(|folder| fs::read_to_string(file(folder)).ok());
                let is_there = texts.collect::<String>().contains(&format!("fn {test}("));
                assert!(is_there, "{}: {test}", check.name);
                named += 1;
            }
        }
        assert!(named > 10, "{named}");
    }
}
