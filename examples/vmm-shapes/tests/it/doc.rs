//! The documents for VMMs are correct: their code is the code of the examples, and their tables agree with
//! the libraries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_device::{Geometry, Region};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Returns the text with one space for all white space between words.
fn normalized(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the cells of the table's rows whose header begins with these two cells.
fn rows(document: &str, header: [&str; 2]) -> Vec<Vec<String>> {
    let start = format!("| {} | {} |", header[0], header[1]);
    let table = document.lines().skip_while(|line| !line.starts_with(&start));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    rows.map(|row| cells(row.trim_matches('|'))).collect()
}

#[test]
fn each_block_of_code_is_in_the_examples_word_for_word() {
    let folders =
        ["vmm-shapes/src", "vmm-shapes/tests/it", "vmm-shapes/tests/it/common", "kvm-vmm/src"];
    let files = folders.iter().flat_map(|folder| {
        fs::read_dir(root().join("examples").join(folder)).unwrap().map(|file| file.unwrap().path())
    });
    let source = files.filter(|path| path.is_file()).map(|path| fs::read_to_string(path).unwrap());
    let source = normalized(&source.collect::<String>());

    let document = document("docs/vmm.md");
    let blocks: Vec<_> = document.split("```rust\n").skip(1).collect();

    assert!(blocks.len() > 8, "{}", blocks.len());
    for block in blocks {
        let block = block.split("```").next().unwrap();
        for part in block.split("// ...\n").map(normalized) {
            assert!(!part.is_empty() && source.contains(&part), "not in the examples: {part}");
        }
    }
}

/// Returns the crates that a package links, with their versions.
fn all_linked(package: &str, options: &[&str]) -> BTreeSet<(String, String)> {
    let tree = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--offline", "--locked", "--no-dedupe", "--prefix=none", "--format={p}"])
        .args(["--edges=normal,no-proc-macro", "--target=x86_64-unknown-linux-gnu"])
        .args(["--package", package])
        .args(options)
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let crates = tree.lines().filter_map(|line| line.split_once(" v"));
    crates.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
}

fn is_of_ours(name: &str) -> bool {
    name.starts_with("hypertrace-")
}

/// Returns the third-party crates that `hypertrace-vmm` links, with their versions.
fn linked(options: &[&str]) -> BTreeSet<(String, String)> {
    let mut linked = all_linked("hypertrace-vmm", options);
    linked.retain(|(name, _)| !is_of_ours(name));
    linked
}

/// Returns the modules of a crate in which `unsafe` is allowed, without the modules of tests.
fn modules_with_unsafe(sources: &Path) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    let mut folders = vec![sources.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if fs::read_to_string(&entry).unwrap().contains("#![allow(unsafe_code)]") {
                let module = entry.strip_prefix(sources).unwrap().with_extension("");
                modules.insert(module.display().to_string());
            }
        }
    }
    modules
}

#[test]
fn each_crate_of_ours_has_the_dependencies_and_the_unsafe_modules_of_the_table() {
    let table = rows(&document("device/vmm/README.md"), ["crate", "what it gives"]);

    let linked = all_linked("hypertrace-vmm", &[]);
    // For a crate of this tree, cargo prints the crate's folder after the version.
    let of_ours = linked.iter().filter(|(name, _)| is_of_ours(name)).map(|(name, version)| {
        let folder = version.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
        (&**name, Path::new(folder.unwrap().0).join("src"))
    });
    let sources: BTreeMap<_, _> = of_ours.collect();
    assert_eq!(
        table.iter().map(|row| &*row[0]).collect::<BTreeSet<_>>(),
        sources.keys().copied().collect()
    );
    for row in table {
        let foreign = all_linked(&row[0], &[]).into_iter().filter(|(name, _)| !is_of_ours(name));
        let modules = modules_with_unsafe(&sources[&*row[0]]);
        let listed: BTreeSet<String> =
            row[3].split(", ").filter(|name| *name != "none").map(str::to_owned).collect();
        assert_eq!(
            (foreign.count().to_string(), &modules),
            (row[2].clone(), &listed),
            "{}",
            row[0]
        );
    }
}

#[test]
fn each_third_party_crate_that_is_linked_is_in_the_table() {
    let linked = linked(&["--features=events"]);

    let table = rows(&document("device/vmm/README.md"), ["crate", "version"]);

    assert_eq!(table.len(), linked.len(), "{linked:?}");
    for ((name, version), row) in linked.iter().zip(table.iter().collect::<BTreeSet<_>>()) {
        assert_eq!(*name, row[0]);
        assert!(version.starts_with(&format!("{}.", row[1])), "{name} {version}");
    }
}

#[test]
fn without_declared_events_no_crate_of_that_feature_is_linked() {
    let without = linked(&[]);

    let table = rows(&document("device/vmm/README.md"), ["crate", "version"]);
    let (of_events, others): (Vec<_>, Vec<_>) =
        table.into_iter().partition(|row| row[3].starts_with("feature `events`"));

    let names = |rows: Vec<Vec<String>>| rows.into_iter().map(|row| row[0].clone());
    assert!(names(of_events).eq(["arrayvec", "linkme", "probe"]));
    // Two versions of a crate have two rows.
    let without: BTreeSet<_> = without.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names(others).collect::<BTreeSet<_>>(), without);
}

#[test]
fn the_sizes_of_bars_are_those_of_the_geometry() {
    let table = rows(&document("device/README.md"), ["clients", "ring"]);

    assert!(table.len() > 3, "{table:?}");
    for row in table {
        let ring_bytes = bytes(&row[1]);
        let block_bytes = Geometry::default().block_bytes.min(ring_bytes / 16);
        let clients = row[0].parse().unwrap();
        let geometry = Geometry { clients, ring_bytes, block_bytes, ..Geometry::default() };
        geometry.check().unwrap();
        let regions = [Region::Data, Region::Control, Region::Rings];
        let sizes = regions.map(|region| geometry.bar_size(region));
        let expected = sizes.into_iter().chain([geometry.window_size()]).map(text);
        assert_eq!(row[2..], expected.collect::<Vec<_>>(), "{} clients", row[0]);
        assert_eq!(geometry.bar_size(Region::Config), 64 << 10);
    }
}

fn bytes(text: &str) -> u64 {
    let (number, unit) = text.split_once(' ').unwrap();
    number.parse::<u64>().unwrap() << if unit == "KiB" { 10 } else { 20 }
}

fn text(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[test]
fn the_lines_of_a_device_on_a_bus_are_those_of_the_example() {
    let lines = |file: &str| {
        let text = fs::read_to_string(root().join("examples/vmm-shapes/src").join(file)).unwrap();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        text.lines().filter(is_code).count()
    };
    let expected = format!(
        "{} lines of code for a PCI bus like Cloud Hypervisor's, {} for an MMIO bus",
        lines("function_device.rs"),
        lines("mmio_device.rs")
    );

    let text = document("docs/integrate.md");

    assert!(text.contains(&expected), "{expected}");
}
