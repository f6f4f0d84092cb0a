//! `cargo xtask mutants` removes one defence after the other in a copy of the tree. For each defence, the
//! command runs the tests that tests/threat-model.toml names. At least one of these tests must fail.
//!
//! A mutant is a line in tests/threat-model.toml, in the row of a promise. The line `FILE: OLD -> NEW`
//! replaces the text OLD, which FILE contains once, with NEW. The line `NUMBER in FILE: OLD -> NEW` does the
//! same for a NUMBER that the mutant changes. The promise must contain this NUMBER.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::command::target_folder;
use crate::probe::{self, Machine};
use crate::step::{Limit, OK, Ran, Steps};
use crate::tree;

/// Options of the mutants
#[derive(clap::Args)]
pub struct Options {
    /// Run only mutants whose line or threat contains this text
    #[arg(long, default_value = "", hide_default_value = true)]
    only: String,

    #[command(flatten)]
    limit: Limit,
}

/// Row of the threat model.
#[derive(Deserialize)]
struct Row {
    threat: String,
    /// Tests of the promise, each as `FILE: FUNCTION`
    tests: Vec<String>,
    #[serde(default)]
    mutants: Vec<String>,
}

/// Change that removes a defence, and the tests. At least one of the tests must notice the change.
struct Mutant {
    threat: String,
    /// The changed file, and the number in the promise that the mutant changes
    place: String,
    file: String,
    old: String,
    new: String,
    tests: Vec<Test>,
}

/// A test, as the threat model names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    file: PathBuf,
    name: String,
}

/// Runs all mutants, and prints a line for each. Returns false if no test fails without one of the defences,
/// or if the tests could not run.
///
/// # Errors
/// If the copy of the tree cannot be made, or if a file does not contain the text OLD of its mutant exactly
/// once.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let only = options.only.as_str();
    let mut mutants = read(root)?;
    mutants.retain(|mutant| {
        [&mutant.threat, &mutant.place, &mutant.old].iter().any(|text| text.contains(only))
    });
    ensure!(!mutants.is_empty(), "no mutant has {only:?}");

    let copy = target_folder(root)?.join("mutants/tree");
    let machine = Machine::probe(&probe::names().collect::<Vec<_>>());
    // All tests first run with the defences in place, before the first mutant, because cargo has to build a
    // crate again for each mutant.
    renew(&copy, root)?;
    let mut steps = Steps::begin(&copy, machine, options.limit)?;
    let mut before = BTreeMap::new();
    for test in mutants.iter().flat_map(|mutant| &mutant.tests) {
        if !before.contains_key(test) {
            let name = format!("with its defence: {}", test.name);
            before.insert(test, verdict(&steps.test(&name, &line(&copy, test)?)?));
        }
    }

    for mutant in &mutants {
        renew(&copy, root)?;
        mutant.apply(&copy)?;
        let name = format!("without a defence in {}: {}", mutant.place, mutant.old);
        let (mut ran, mut is_noticed) = (Ran::default(), false);
        for test in mutant.tests.iter().filter(|test| before[test] == OK) {
            ran = steps
                .test(&format!("{name}: one must fail: {}", test.name), &line(&copy, test)?)?;
            is_noticed = ran.built && !ran.ok;
            if is_noticed || !ran.built {
                break;
            }
        }
        steps.row(&name, &ran, without_defence(&ran), is_noticed);
    }
    Ok(steps.conclude())
}

/// Returns the verdict on a test that this machine can run.
fn verdict(ran: &Ran) -> &'static str {
    ran.notes.print_missing();
    if ran.ok && !ran.notes.missing.is_empty() { "NOT RUN" } else { ran.verdict() }
}

/// Returns the verdict on a mutant from the last test that ran without the defence. The verdict says whether
/// a test notices that the defence is missing.
fn without_defence(ran: &Ran) -> &'static str {
    match (ran.built, ran.ok) {
        (true, false) => OK,
        (true, true) => "NOT NOTICED",
        _ if ran.build.is_zero() => "NOT RUN: no test of its row passes with the defence",
        _ => "FAILED to build",
    }
}

/// Reads all mutants of the threat model.
fn read(root: &Path) -> Result<Vec<Mutant>> {
    let text = fs::read_to_string(root.join("tests/threat-model.toml"))?;
    let sections: BTreeMap<String, Vec<Row>> = toml::from_str(&text)?;
    let mut mutants = Vec::new();
    for Row { threat, tests, mutants: lines } in sections.into_values().flatten() {
        let test = |line: &String| {
            let (file, name) = line.split_once(": ").context("a test is not `FILE: FUNCTION`")?;
            Ok(Test { file: file.into(), name: name.to_owned() })
        };
        let tests: Vec<Test> = tests.iter().map(test).collect::<Result<_>>()?;
        for line in lines {
            let parsed = parse(&line).with_context(|| format!("not `FILE: OLD -> NEW`: {line}"))?;
            mutants.push(Mutant { threat: threat.clone(), tests: tests.clone(), ..parsed });
        }
    }
    // The mutants are sorted by file, so that cargo builds less: if the next mutant changes another crate,
    // then cargo has to build both crates again.
    mutants.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(mutants)
}

/// Parses a mutant, without its row.
fn parse(line: &str) -> Option<Mutant> {
    let (place, change) = line.split_once(": ")?;
    let (old, new) = change.split_once(" ->")?;
    let (_, file) = place.rsplit_once(" in ").unwrap_or(("", place));
    let new = new.strip_prefix(' ').unwrap_or(new);
    let [place, file, old, new] = [place, file, old, new].map(str::to_owned);
    Some(Mutant { threat: String::new(), place, file, old, new, tests: Vec::new() })
}

impl Mutant {
    /// Changes the file in a copy of the tree.
    fn apply(&self, copy: &Path) -> Result<()> {
        let file = copy.join(&self.file);
        let text = fs::read_to_string(&file).with_context(|| self.file.clone())?;
        let found = text.matches(&self.old).count();
        ensure!(found == 1, "{} has this {found} times, not once: {}", self.file, self.old);
        Ok(fs::write(file, text.replacen(&self.old, &self.new, 1))?)
    }
}

/// Updates a copy of the tree, so that the copy is equal to the tree. Equal files are not written, so that
/// cargo builds little.
fn renew(copy: &Path, root: &Path) -> Result<()> {
    for file in tree::files(root)? {
        let copied = copy.join(file.strip_prefix(root)?);
        let contents = fs::read(&file)?;
        if fs::read(&copied).is_ok_and(|old| old == contents) {
            continue;
        }
        fs::create_dir_all(copied.parent().context("a file without a folder")?)?;
        fs::write(&copied, contents)?;
        fs::set_permissions(&copied, fs::metadata(&file)?.permissions())?;
    }
    for copied in tree::files(copy)? {
        if !root.join(copied.strip_prefix(copy)?).exists() {
            fs::remove_file(copied)?;
        }
    }
    Ok(())
}

/// Returns the command that runs one test in a copy of the tree.
fn line(copy: &Path, test: &Test) -> Result<String> {
    let package = package_of(copy, &test.file)?;
    let name = tree::package_name(&package.join("Cargo.toml"))?;
    let inside = copy.join(&test.file).strip_prefix(&package)?.display().to_string();
    let program = match inside.strip_prefix("tests/").and_then(|path| path.split(['/', '.']).next())
    {
        // The test is in a file in `tests`, or in a folder whose tests are one program.
        Some(program) => format!("--test {program}"),
        None if package.join("src/lib.rs").exists() => "--lib".to_owned(),
        None => "--bins".to_owned(),
    };
    let cargo = "CARGO_TARGET_DIR=../target cargo test --profile checked --all-features";
    Ok(format!("{cargo} -p {name} {program} {}", test.name))
}

/// Returns the folder of the package that contains a file.
fn package_of(root: &Path, file: &Path) -> Result<PathBuf> {
    let folders = file.ancestors().skip(1).map(|folder| root.join(folder));
    let mut packages = folders.filter(|folder| folder.join("Cargo.toml").exists());
    packages.next().with_context(|| format!("no package has {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_mutant_changes_one_place_and_has_a_test() {
        let root = crate::root().unwrap();
        let mutants = read(&root).unwrap();
        assert!(!root.join("xtask/mutants").exists(), "mutants are in tests/threat-model.toml");
        assert!(mutants.len() > 70, "{}", mutants.len());
        for mutant in mutants {
            let copy = tempfile::tempdir().unwrap();
            let [from, to] = [&*root, copy.path()].map(|folder| folder.join(&mutant.file));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
            mutant.apply(copy.path()).unwrap();
            assert_ne!(mutant.old, mutant.new, "{}", mutant.place);
            assert!(!mutant.tests.is_empty(), "{}: {}", mutant.place, mutant.old);
        }
    }

    #[test]
    fn a_mutant_that_cannot_be_built_is_told_from_one_without_a_test() {
        let build = Duration::from_secs(1);
        assert_eq!(without_defence(&Ran { build, ..Ran::default() }), "FAILED to build");
        assert_eq!(without_defence(&Ran::default()).split(':').next(), Some("NOT RUN"));
        let built = Ran { build, built: true, ..Ran::default() };
        assert_eq!(without_defence(&built), OK);
        assert_eq!(without_defence(&Ran { ok: true, ..built }), "NOT NOTICED");
    }

    #[test]
    fn a_mutant_may_say_the_number_and_may_remove_text() {
        let parsed = |line| {
            let Mutant { place, file, old, new, .. } = parse(line)?;
            Some([place, file, old, new])
        };
        let is = |line, words: [&str; 4]| assert_eq!(parsed(line), Some(words.map(str::to_owned)));
        is("2 MiB in a/b.rs: 2 << 20 -> 4", ["2 MiB in a/b.rs", "a/b.rs", "2 << 20", "4"]);
        is("a/b.rs: x: 1\n; ->", ["a/b.rs", "a/b.rs", "x: 1\n;", ""]);
        assert_eq!(parsed("a/b.rs: x"), None);
    }

    #[test]
    fn mutants_change_the_copy_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (root, tree) = (dir.path().join("root"), dir.path().join("root/target/mutants/tree"));
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/f"), "one\ntwo\n").unwrap();
        let mutant = parse("a/f: two -> 2").unwrap();
        renew(&tree, &root).unwrap();
        mutant.apply(&tree).unwrap();
        let copy = || fs::read_to_string(tree.join("a/f")).unwrap();
        assert_eq!(copy(), "one\n2\n");
        assert_eq!(fs::read_to_string(root.join("a/f")).unwrap(), "one\ntwo\n");
        assert!(mutant.apply(&tree).is_err());
        renew(&tree, &root).unwrap();
        assert_eq!(copy(), "one\ntwo\n");
    }
}
