//! The tables of `docs/benchmarks.md`, made from the rows.

use super::row::Row;
use super::rows::SECTIONS;
use anyhow::{Context, Result, bail};
use std::fs;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");
/// Begin of the line before a section's table, and of its end. The section's name is between them.
const BEGIN: (&str, &str) = ("<!-- rows: ", " -->");
/// Line after a section's table.
const END: &str = "<!-- end of rows -->";

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
        let name = line.strip_prefix(BEGIN.0).and_then(|rest| rest.strip_suffix(BEGIN.1));
        let Some(name) = name else { continue };
        let section = SECTIONS.iter().find(|(section, _)| *section == name);
        let (_, rows) = section.with_context(|| format!("no section {name:?}"))?;
        out += &table(rows);
        lines.find(|line| *line == END).with_context(|| format!("no end of {name:?}"))?;
        out += &format!("{END}\n");
        missing.retain(|missing| *missing != name);
    }
    if let [name, ..] = missing[..] {
        bail!("no line `{}{name}{}`", BEGIN.0, BEGIN.1);
    }
    Ok(out)
}

/// Makes a table of rows.
fn table(rows: &[&[Row]]) -> String {
    let line = |row: &Row| {
        let target = row.target.unwrap_or_default();
        let target = target.replace("<=", "≤").replace(">=", "≥").replace(" x ", " × ");
        format!("| `{}` | {} | {target} |\n", row.name, row.what)
    };
    let head = "| row | what | target |\n|---|---|---|\n".to_owned();
    head + &rows.iter().copied().flatten().map(line).collect::<String>()
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
        let place = |name| format!("{}{name}{}\n", BEGIN.0, BEGIN.1);
        let whole = |name| place(name) + "old\n" + END + "\n";
        let error = |text: &str| with_tables(text).unwrap_err().to_string();

        assert_eq!(error(&whole("C")), "no line `<!-- rows: ring -->`");
        assert_eq!(error(&place("C")), "no end of \"C\"");
        assert_eq!(error(&whole("D")), "no section \"D\"");
    }
}
