//! The lists of `docs/benchmarks.md`, made from the rows.

use super::row::Row;
use super::rows::SECTIONS;
use anyhow::{Context, Result, bail};
use std::fs;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmarks.md");
/// Beginning and end of the line before a section's rows. The section's name is between them.
const MARK: (&str, &str) = ("<!-- ", " -->");

/// Writes the rows into `docs/benchmarks.md`.
///
/// # Errors
/// If the file cannot be read or written, or has no place for a section.
pub fn write() -> Result<()> {
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    fs::write(FILE, with_rows(&text)?).with_context(|| format!("cannot write {FILE}"))
}

/// Returns a text in which each section's rows are below the section's line.
fn with_rows(text: &str) -> Result<String> {
    let mut missing: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with("- `")) {
        out += &format!("{line}\n");
        let name = line.strip_prefix(MARK.0).and_then(|rest| rest.strip_suffix(MARK.1));
        let Some(name) = name else { continue };
        let section = SECTIONS.iter().find(|(section, _)| *section == name);
        let (_, rows) = section.with_context(|| format!("no section {name:?}"))?;
        out += &rows.iter().copied().flatten().map(line_of).collect::<String>();
        missing.retain(|missing| *missing != name);
    }
    if let [name, ..] = missing[..] {
        bail!("no line `{}{name}{}`", MARK.0, MARK.1);
    }
    Ok(out)
}

/// Returns the line of a row.
fn line_of(row: &Row) -> String {
    let target = row.target.map(|target| format!(" ({target})")).unwrap_or_default();
    let target = target.replace("<=", "≤").replace(">=", "≥").replace(" x ", " × ");
    format!("- `{}`: {}{target}\n", row.name, row.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_have_the_rows_as_they_are() {
        let text = fs::read_to_string(FILE).unwrap();

        let written = with_rows(&text).unwrap();

        let how = "`cargo run -p hypertrace-bench -- --write-docs` writes docs/benchmarks.md";
        assert!(written == text, "the rows have changed: {how}");
    }

    #[test]
    fn a_section_without_a_place_is_named() {
        let error = |text: &str| with_rows(text).unwrap_err().to_string();

        assert_eq!(error("<!-- C -->\n"), "no line `<!-- ring -->`");
        assert_eq!(error("<!-- D -->\n"), "no section \"D\"");
    }
}
