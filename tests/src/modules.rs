//! Modules of fetched kernels, in the order in which they can be loaded.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folder that has the directories `usr` and so on for a fetched file, as / has them for an
/// installed file.
pub(crate) fn root_of(file: &Path) -> PathBuf {
    let file = fs::canonicalize(file).unwrap();
    file.ancestors().find(|folder| folder.join("usr").is_dir()).unwrap().to_owned()
}

/// Returns the files of these modules of a kernel and of all modules that they need, in the order in which
/// they can be loaded.
#[track_caller]
pub(crate) fn modules_of(kernel: &Path, names: &[&str]) -> Vec<PathBuf> {
    let mut left = vec![root_of(kernel).join("lib/modules")];
    let mut modules = Vec::new();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => modules.push(entry.path()),
            }
        }
    }
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in names {
        add_module(name, &modules, &mut seen, &mut order);
    }
    order
}

/// Adds a module after the modules that it needs. The module's file lists the names of these modules.
fn add_module(
    name: &str,
    modules: &[PathBuf],
    seen: &mut BTreeSet<String>,
    order: &mut Vec<PathBuf>,
) {
    let plain = |name: &str| name.replace('-', "_");
    if !seen.insert(plain(name)) {
        return;
    }
    let is_it = |path: &&PathBuf| {
        path.extension().is_some_and(|extension| extension == "ko")
            && plain(path.file_stem().unwrap().to_str().unwrap()) == plain(name)
    };
    let path = modules.iter().find(is_it).unwrap_or_else(|| panic!("no module {name}"));
    let bytes = fs::read(path).unwrap();
    let texts = bytes.split(|byte| *byte == 0);
    let needed = texts.filter_map(|text| text.strip_prefix(b"depends=")).next().unwrap_or_default();
    for needed in String::from_utf8_lossy(needed).split(',').filter(|needed| !needed.is_empty()) {
        add_module(needed, modules, seen, order);
    }
    order.push(path.clone());
}
