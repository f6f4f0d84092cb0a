//! The tests that the threat model names for its promises exist.

use std::fs;
use std::path::Path;

#[test]
fn every_test_in_the_threat_model_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("docs/threat-model.md")).unwrap();
    let mut named = 0;
    // Between backquotes: `file: name`.
    for (file, name) in text.split('`').filter_map(|part| part.split_once(".rs: ")) {
        let source = fs::read_to_string(root.join(format!("{file}.rs")));
        let source = source.unwrap_or_else(|e| panic!("{file}.rs: {e}"));
        assert!(source.contains(&format!("fn {name}(")), "{file}.rs has no {name}");
        named += 1;
    }
    assert!(named > 40, "{named}");
    // Each row of a table of promises has a test, or the words "not tested".
    let promises = text.split("## Duties of the VMM").next().unwrap();
    for row in
        promises.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| threat"))
    {
        assert!(row.contains(".rs: ") || row.contains("*not tested*"), "{row}");
    }
}

#[test]
fn each_test_of_a_removed_defence_is_in_the_threat_model() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("docs/threat-model.md")).unwrap();
    for patch in fs::read_dir(root.join("xtask/mutants")).unwrap() {
        let patch = patch.unwrap().path();
        let patched = fs::read_to_string(&patch).unwrap();
        for test in patched.lines().filter_map(|line| line.strip_prefix("Test: ")) {
            assert!(text.contains(&format!("`{test}`")), "{}: {test}", patch.display());
        }
    }
}
