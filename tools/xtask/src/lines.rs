//! Counts the lines of code in the source tree.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

use anyhow::{Context, Result};

use crate::tree;

/// Names of sums, and the folders that are added up for each.
const SUMS: [(&str, &[&str]); 2] = [
    ("files and their readers", &["timeline", "trace"]),
    ("guest and device", &["abi", "device", "guest-lib", "user-mode"]),
];
/// Folders that are not part of the libraries' sum.
const NO_LIBRARIES: [&str; 3] = ["cli", "examples", "tools"];

/// Numbers of lines that are neither blank nor comments.
#[derive(Clone, Copy, Default)]
struct Lines {
    rust: usize,
    c: usize,
    tests: usize,
}

impl Lines {
    fn add(&mut self, other: Lines) {
        self.rust += other.rust;
        self.c += other.c;
        self.tests += other.tests;
    }
}

/// Prints the numbers of lines of each folder of the tree, and sums.
///
/// # Errors
/// If a file cannot be read.
pub fn print(root: &Path) -> Result<()> {
    let mut folders: BTreeMap<String, Lines> = BTreeMap::new();
    for path in tree::files(root)? {
        let place = path.strip_prefix(root)?;
        let is_tests =
            |part| ["tests", "tests.rs"].map(|n| Component::Normal(n.as_ref())).contains(&part);
        let is_test = place.components().any(is_tests);
        let is_c = match path.extension().and_then(|name| name.to_str()) {
            Some("rs") => false,
            Some("c" | "h") => true,
            _ => continue,
        };
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        let (code, tests) = if is_c { (of_c(&text), 0) } else { of_rust(&text) };
        let found = match (is_test, is_c) {
            (true, _) => Lines { tests: code + tests, ..Lines::default() },
            (_, true) => Lines { c: code, ..Lines::default() },
            _ => Lines { rust: code, tests, ..Lines::default() },
        };
        let folder = place.iter().next().unwrap_or_default().to_string_lossy().into_owned();
        folders.entry(folder).or_default().add(found);
    }
    println!("{:<26} {:>7} {:>7} {:>7}", "lines of code", "Rust", "C", "tests");
    let row = |name: &str, lines: Lines| {
        println!("{name:<26} {:>7} {:>7} {:>7}", lines.rust, lines.c, lines.tests);
    };
    folders.iter().for_each(|(name, lines)| row(name, *lines));
    let sum = |name: &str, is_part: &dyn Fn(&str) -> bool| {
        let mut sum = Lines::default();
        let parts = folders.iter().filter(|(folder, _)| is_part(folder));
        parts.for_each(|(_, lines)| sum.add(*lines));
        row(name, sum);
    };
    println!();
    for (name, parts) in SUMS {
        sum(name, &|folder| parts.contains(&folder));
    }
    sum("libraries", &|folder| !NO_LIBRARIES.contains(&folder));
    sum("all", &|_| true);
    Ok(())
}

fn is_code(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("//")
}

/// Returns the number of lines of code, and the number of lines of the tests in the same file. A module of
/// tests ends at a brace in the first column, as rustfmt writes it.
fn of_rust(text: &str) -> (usize, usize) {
    let (mut code, mut tests) = (0, 0);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let begins = |next: &&&str| next.starts_with("mod ");
        if line == "#[cfg(test)]" && lines.peek().filter(begins).is_some() {
            let is_inline = lines.peek().is_some_and(|line| line.ends_with('{'));
            let module = lines.by_ref().take_while(|line| is_inline && *line != "}");
            tests += module.filter(|line| is_code(line.trim())).count();
        } else {
            code += usize::from(is_code(line.trim()));
        }
    }
    (code, tests)
}

fn of_c(text: &str) -> usize {
    let mut is_comment = false;
    let is_counted = |line: &&str| {
        let line = line.trim();
        let (was_comment, begins) = (is_comment, line.starts_with("/*"));
        is_comment = (is_comment || begins) && !line.contains("*/");
        !was_comment && !begins && is_code(line)
    };
    text.lines().filter(is_counted).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_are_not_code() {
        let rust = "//! A\n\nfn a() {}\n    // b\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n";
        assert_eq!(of_rust(rust), (2, 3));
        assert_eq!(of_rust("#[cfg(test)]\nmod tests;\nfn a() {}\n"), (1, 0));
        assert_eq!(of_c("/* a\n * b */\nint a; /* c */\n\n// d\n/* e */\n"), 1);
    }
}
