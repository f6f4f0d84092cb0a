//! The modules of a crate must not import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The test reads the paths that begin with `crate::` in the plain text. The test does not follow items that
/// `lib.rs` re-exports.
#[test]
fn folders_import_in_no_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("\nmembers = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.unwrap();
    let mut imports = 0;
    for package in members.split('"').skip(1).step_by(2) {
        let parts = fs::read_dir(root.join(package).join("src")).into_iter().flatten().flatten();
        let mut parts: BTreeMap<String, BTreeSet<String>> = parts
            .map(|part| (part.path(), part.path().file_stem().unwrap().display().to_string()))
            .filter(|(_, name)| !["lib", "main", "bin"].contains(&name.as_str()))
            .map(|(path, name)| (name, imported(&code(&path))))
            .collect();
        imports += parts.values().flatten().count();
        // A part that imports none of the remaining parts is not in a circle.
        while let Some(next) = parts.iter().find_map(|(name, imports)| {
            let mut others = imports.iter().filter(|import| *import != name);
            (!others.any(|import| parts.contains_key(import))).then(|| name.clone())
        }) {
            parts.remove(&next);
        }
        assert!(parts.is_empty(), "a circle of imports in or below {package}/src: {parts:?}");
    }
    assert!(imports > 300, "{imports}");
}

/// Returns the code of a file or folder, without comments and without the tests at the end of a file.
fn code(path: &Path) -> String {
    let Ok(text) = fs::read_to_string(path) else {
        return fs::read_dir(path).unwrap().map(|entry| code(&entry.unwrap().path())).collect();
    };
    let code = text.split("#[cfg(test)]\nmod").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim().starts_with("//")).collect()
}

/// Returns the modules of the crate that its code names: `a` for `crate::a::b`; `a` and `c` for
/// `crate::{a::b, c}`.
fn imported(code: &str) -> BTreeSet<String> {
    let paths = code.split("crate::").skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        Some(group) => {
            let mut depth = 0;
            let first = |c: char| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                (depth == 0 && c == ',') || depth < 0
            };
            group.split(first).take_while(|path| !path.contains(';')).collect()
        }
        None => vec![rest],
    });
    let name = |path: &str| {
        path.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
    };
    paths.filter_map(name).collect()
}
