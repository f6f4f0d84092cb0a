//! `cargo xtask mutants`: removes one defence after the other in a copy of the tree, and runs the tests that
//! tests/threat-model.toml names for it. Each must fail.
//!
//! A mutant is a patch in `xtask/mutants`. Its first lines say what it removes, and name the tests as the threat model does:
//! `Test: trace/tests/it/budgets.rs: a_guest_that_fills_the_tables_gets_untyped_events`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{first_line, target_folder};
use crate::probe::{self, Machine};
use crate::step::{Limit, OK, Ran, Steps};
use crate::tree;

/// Options of the mutants
#[derive(clap::Args)]
pub struct Options {
    /// Run only mutants whose file name contains this text
    #[arg(long, default_value = "", hide_default_value = true)]
    only: String,

    #[command(flatten)]
    limit: Limit,
}

/// A defence that is removed, and the tests that must notice it.
struct Mutant {
    name: String,
    patch: PathBuf,
    /// The first file that it changes.
    changed: String,
    tests: Vec<Test>,
}

/// A test, as the threat model names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    file: PathBuf,
    name: String,
}

/// Runs all mutants, and prints a line for each. Returns false if a test passes without its defence, or could not run.
///
/// # Errors
/// If the copy of the tree cannot be made, or a patch names no test.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let only = &options.only;
    let mut mutants = read(&root.join("xtask/mutants"))?;
    mutants.retain(|mutant| mutant.name.contains(only.as_str()));
    ensure!(!mutants.is_empty(), "no file in xtask/mutants has {only:?} in its name");

    let copy = target_folder(root)?.join("mutants/tree");
    let machine = Machine::probe(&probe::names().collect::<Vec<_>>());
    // All of them first: each patch has its crate built again.
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
        apply(&copy, &mutant.patch)?;
        for test in &mutant.tests {
            let name = format!("without {}, must fail: {}", mutant.name, test.name);
            if before[test] != OK {
                steps.skip(&name, "");
                steps.fail(format!("{name}: with the defence it is {}", before[test]));
                continue;
            }
            let ran = steps.test(&name, &line(&copy, test)?)?;
            let fails = ran.built && !ran.ok;
            steps.row(&name, &ran, if fails { OK } else { verdict(&ran) }, fails);
        }
    }
    Ok(steps.conclude())
}

/// Returns the verdict on a test that this machine can run.
fn verdict(ran: &Ran) -> &'static str {
    ran.notes.print_missing();
    if ran.ok && !ran.notes.missing.is_empty() { "NOT RUN" } else { ran.verdict() }
}

/// Reads all patches of a folder.
fn read(folder: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for patch in tree::entries(folder)? {
        let text = fs::read_to_string(&patch)?;
        let tests = tests_in(&text).with_context(|| patch.display().to_string())?;
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let changed = text.lines().find_map(|line| line.strip_prefix("+++ b/"));
        let changed = changed.context("it changes no file")?.to_owned();
        mutants.push(Mutant { name, patch, changed, tests });
    }
    // Those of one crate one after the other: a change of another crate has more built again.
    mutants.sort_by(|a, b| a.changed.cmp(&b.changed));
    Ok(mutants)
}

/// Returns the tests that the lines before a patch name.
fn tests_in(patch: &str) -> Result<Vec<Test>> {
    let head = patch.lines().take_while(|line| !line.starts_with("--- "));
    let tests = head.filter_map(|line| line.strip_prefix("Test: ")).map(|line| {
        let (file, name) = line.split_once(": ").context("a line is not `Test: FILE: NAME`")?;
        Ok(Test { file: PathBuf::from(file), name: name.trim().to_owned() })
    });
    let tests = tests.collect::<Result<Vec<_>>>()?;
    ensure!(!tests.is_empty(), "no line begins with `Test: `");
    Ok(tests)
}

/// Makes a copy of the tree equal to it. Files that are equal stay as they are, so that cargo builds little.
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

/// Applies a patch to a copy of the tree.
fn apply(copy: &Path, patch: &Path) -> Result<()> {
    let mut git = Command::new("git");
    // The copy stands in the folder of a repository, whose files the patch must not change.
    git.env("GIT_CEILING_DIRECTORIES", copy.parent().unwrap_or(copy));
    first_line(git.args(["apply", "-C1"]).arg(patch).current_dir(copy))
        .with_context(|| format!("{} does not fit any more: make it again", patch.display()))?;
    Ok(())
}

/// Returns the command that runs one test in a copy of the tree.
fn line(copy: &Path, test: &Test) -> Result<String> {
    let package = package_of(copy, &test.file)?;
    let name = tree::package_name(&package.join("Cargo.toml"))?;
    let inside = copy.join(&test.file).strip_prefix(&package)?.display().to_string();
    let program = match inside.strip_prefix("tests/").and_then(|path| path.split(['/', '.']).next())
    {
        // A file in `tests`, or in a folder whose tests are one program.
        Some(program) => format!("--test {program}"),
        None if package.join("src/lib.rs").exists() => "--lib".to_owned(),
        None => "--bins".to_owned(),
    };
    let cargo = "CARGO_TARGET_DIR=../target cargo test --profile checked --all-features";
    Ok(format!("{cargo} -p {name} {program} {}", test.name))
}

/// Returns the folder of the package that a file is in.
fn package_of(root: &Path, file: &Path) -> Result<PathBuf> {
    let folders = file.ancestors().skip(1).map(|folder| root.join(folder));
    let mut packages = folders.filter(|folder| folder.join("Cargo.toml").exists());
    packages.next().with_context(|| format!("no package has {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_its_tests() {
        let test = |file: &str, name: &str| Test { file: file.into(), name: name.into() };
        let patch = "Without a bound.\n\nTest: a/tests/b.rs: c\nTest: a/src/d.rs: e\n--- a/f\n+++ b/f\n\
                     @@ -1 +1 @@\n-Test: g/h.rs: i\n";
        assert_eq!(tests_in(patch).unwrap(), [test("a/tests/b.rs", "c"), test("a/src/d.rs", "e")]);
        assert!(tests_in("Test: nothing\n--- a/f\n").is_err());
        assert!(tests_in("--- a/f\n").is_err());
    }

    #[test]
    fn patches_change_the_copy_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (root, tree) = (dir.path().join("root"), dir.path().join("root/target/mutants/tree"));
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/f"), "one\ntwo\n").unwrap();
        Command::new("git").args(["init", "-q"]).current_dir(&root).status().unwrap();
        let patch = dir.path().join("p.patch");
        fs::write(&patch, "Test: x: y\n--- a/a/f\n+++ b/a/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n")
            .unwrap();
        renew(&tree, &root).unwrap();
        apply(&tree, &patch).unwrap();
        let copy = || fs::read_to_string(tree.join("a/f")).unwrap();
        assert_eq!(copy(), "one\n2\n");
        assert_eq!(fs::read_to_string(root.join("a/f")).unwrap(), "one\ntwo\n");
        assert!(apply(&tree, &patch).is_err());
        renew(&tree, &root).unwrap();
        assert_eq!(copy(), "one\ntwo\n");
    }
}
