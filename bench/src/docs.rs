//! The tables of `docs/benchmarks.md`, made from the rows.

use super::row::Row;
use super::rows::SECTIONS;
use anyhow::{Context, Result, bail};
use std::fs;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");
/// Begin of the line before a section's table. The section's name follows.
const BEGIN: &str = "```text ";
/// Line after a section's table.
const END: &str = "```";

/// Writes the tables into the file.
///
/// # Errors
/// If the file cannot be read or written, or has no place for a section.
pub fn write() -> Result<()> {
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    fs::write(FILE, with_tables(&text)?).with_context(|| format!("cannot write {FILE}"))
}

/// Returns a text with the sections' tables between the lines for them.
fn with_tables(text: &str) -> Result<String> {
    let mut missing: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
    let (mut out, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        out += &format!("{line}\n");
        let Some(name) = line.strip_prefix(BEGIN) else { continue };
        let section = SECTIONS.iter().find(|(section, _)| *section == name);
        let (_, rows) = section.with_context(|| format!("no section {name:?}"))?;
        out += &table(rows);
        lines.find(|line| *line == END).with_context(|| format!("no end of {name:?}"))?;
        out += &format!("{END}\n");
        missing.retain(|missing| *missing != name);
    }
    if let [name, ..] = missing[..] {
        bail!("no line `{BEGIN}{name}`");
    }
    Ok(out)
}

/// Makes a table of rows: name, target, and what is measured.
fn table(rows: &[&[Row]]) -> String {
    let cells = |row: &Row| {
        let target = row.target.unwrap_or_default();
        let target = target.replace("<=", "≤").replace(">=", "≥").replace(" x ", " × ");
        (row.name, target, row.what.replace('`', ""))
    };
    let cells: Vec<_> = rows.iter().copied().flatten().map(cells).collect();
    let names = cells.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let targets = cells.iter().map(|(_, target, _)| target.chars().count()).max().unwrap_or(0);
    let line = |(name, target, what)| format!("{name:names$}  {target:targets$}  {what}\n");
    cells.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_docs_have_the_rows_as_they_are() {
        let text = fs::read_to_string(FILE).unwrap();

        let written = with_tables(&text).unwrap();

        let how = "`cargo run -p hypertrace-bench -- --write-docs` writes docs/benchmarks.md";
        assert!(written == text, "the rows have changed: {how}");
    }

    #[test]
    fn a_section_without_a_place_or_an_end_is_named() {
        let place = |name| format!("{BEGIN}{name}\n");
        let whole = |name| place(name) + "old\n" + END + "\n";
        let error = |text: &str| with_tables(text).unwrap_err().to_string();

        assert_eq!(error(&whole("C")), "no line ````text ring`");
        assert_eq!(error(&place("C")), "no end of \"C\"");
        assert_eq!(error(&whole("D")), "no section \"D\"");
    }
}
