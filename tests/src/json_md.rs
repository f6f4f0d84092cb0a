//! The members that docs/json.md has for each command, with their types.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Types of the members of a command, by their paths.
pub type Schema = BTreeMap<String, BTreeSet<String>>;
/// Those of each command.
pub type Schemas = BTreeMap<String, Schema>;

/// Names of types. A `?` behind one is `null` beside it.
const TYPES: [&str; 7] = ["number", "integer", "string", "bool", "object", "array", "any"];

/// Returns the columns of a line: two spaces stand between them.
fn columns(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect()
}

/// Reads the documentation.
pub fn schemas() -> Schemas {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md"));
    let (mut schemas, mut command, mut is_code) = (Schemas::new(), String::new(), false);
    // The members around a line, each with its indentation and paths.
    let mut around: Vec<(usize, Vec<String>)> = Vec::new();
    for line in text.unwrap().lines() {
        if let Some(name) = line.strip_prefix("## ") {
            command = name.to_owned();
        }
        if line.starts_with("```") {
            is_code ^= true;
        } else if is_code {
            let schema = schemas.entry(command.clone()).or_default();
            let indentation = line.len() - line.trim_start().len();
            around.retain(|(outer, _)| *outer < indentation);
            let columns = columns(line);
            let outer = around.last().map(|(_, paths)| paths.clone());
            let prefixes = outer.map(|paths| Vec::from_iter(paths.iter().map(|p| format!("{p}."))));
            let prefixes = prefixes.unwrap_or_else(|| vec![String::new()]);
            let names = columns[0].split(", ");
            let paths = names.flat_map(|name| prefixes.iter().map(move |p| format!("{p}{name}")));
            let paths = Vec::from_iter(paths);
            let kind = columns.get(1).copied().unwrap_or_default();
            let name = kind.trim_end_matches('?');
            for path in &paths {
                if let Some(array) = path.strip_suffix("[]") {
                    schema.entry(array.to_owned()).or_insert_with(|| ["array".to_owned()].into());
                }
                if TYPES.contains(&name) {
                    let mut types = BTreeSet::from([name.to_owned()]);
                    types.extend(kind.ends_with('?').then(|| "null".to_owned()));
                    let known = schema.insert(path.clone(), types);
                    assert_eq!(known, None, "{command}: {path} stands twice");
                } else {
                    schema.entry(path.clone()).or_insert_with(|| ["object".to_owned()].into());
                }
            }
            around.push((indentation, paths));
        }
    }
    schemas
}

/// Returns whether a path is one of the documentation: `*` is any name, and at the end also what is below it if that is
/// of any type.
pub fn fits(known: &str, types: &BTreeSet<String>, path: &str) -> bool {
    let (mut known, mut path) = (known.split('.'), path.split('.'));
    loop {
        match (known.next(), path.next()) {
            (None, None) => return true,
            (None, Some(_)) => return types.contains("any"),
            (Some(a), Some(b)) if a == b || a == "*" => {}
            _ => return false,
        }
    }
}
