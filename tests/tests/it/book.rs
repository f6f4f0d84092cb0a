//! The documents as a book: each page is in the book's table of contents, and each link leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use hypertrace_abi::layout::{PCI_CLASS, PCI_REVISION, PCI_SUBSYSTEM};
use hypertrace_abi::record::{RESERVED, id};
use toml::Table;

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap()
}

/// Returns the source tree's files with one of these extensions.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            found.extend(files(&path, extensions));
        } else if path.extension().is_some_and(|e| extensions.contains(&e.to_str().unwrap())) {
            found.push(path);
        }
    }
    found
}

/// Returns the lines of a page outside of its blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the destinations of a page's links within the source tree.
fn links(page: &str) -> Vec<String> {
    let text = prose(page).collect::<Vec<_>>().join(" ");
    let destinations = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    destinations.filter(|link| !link.contains("://")).map(str::to_owned).collect()
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut uses = BTreeMap::new();
    let headings = prose(page).filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    let anchor = |heading: &str| {
        let kept = heading.trim().to_lowercase().replace(' ', "-");
        let kept = kept.replace(|c: char| !c.is_alphanumeric() && c != '-' && c != '_', "");
        let earlier = uses.entry(kept.clone()).or_insert(0);
        *earlier += 1;
        if *earlier == 1 { kept } else { format!("{kept}-{}", *earlier - 1) }
    };
    headings.map(anchor).collect()
}

#[test]
fn each_page_is_in_the_table_of_contents_once() {
    let docs = root().join("docs");
    let listed = links(&fs::read_to_string(docs.join("SUMMARY.md")).unwrap());
    let pages: BTreeSet<_> = listed.iter().cloned().collect();

    let there: BTreeSet<_> = files(&docs, &["md"])
        .iter()
        .map(|page| page.strip_prefix(&docs).unwrap().to_str().unwrap().to_owned())
        .filter(|page| page != "SUMMARY.md")
        .collect();

    assert_eq!(pages, there);
    assert_eq!(listed.len(), pages.len(), "{listed:?}");
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let root = root();
    let mut read = 0;
    for page in files(&root, &["md"]) {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = page.parent().unwrap().join(file);
            let target = if file.is_empty() { page.clone() } else { target };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let headings = anchors(&fs::read_to_string(&target).unwrap());
                assert!(headings.contains(anchor), "{}: {link}", page.display());
            }
            read += 1;
        }
    }
    assert!(read > 200, "{read}");
}

#[test]
fn each_page_that_code_names_exists() {
    let root = root();
    let mut read = 0;
    for file in files(&root, &["rs", "h", "c", "toml", "md"]) {
        let text = fs::read_to_string(&file).unwrap();
        for (_, rest) in
            text.match_indices("docs/").map(|(at, name)| text[at..].split_at(name.len()))
        {
            let name = rest.split_once(".md").map_or("", |(name, _)| name);
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if !name.is_empty() && name.chars().all(is_name) {
                assert!(
                    root.join(format!("docs/{name}.md")).exists(),
                    "{}: {name}",
                    file.display()
                );
                read += 1;
            }
        }
    }
    assert!(read > 50, "{read}");
}

/// Returns the folders of the crates that are published.
fn published(root: &Path) -> Vec<PathBuf> {
    let manifests = files(root, &["toml"]).into_iter().filter(|file| file.ends_with("Cargo.toml"));
    let is_published = |manifest: &PathBuf| {
        let text = fs::read_to_string(manifest).unwrap();
        text.starts_with("[package]") && !text.contains("publish = false")
    };
    manifests.filter(is_published).map(|file| file.parent().unwrap().to_owned()).collect()
}

#[test]
fn each_published_crate_has_what_its_page_in_a_registry_shows() {
    let root = root();
    let folders = published(&root);
    assert!(folders.len() > 15, "{folders:?}");
    let name = |folder: &PathBuf| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let manifest: Table = manifest.parse().unwrap();
        manifest["package"]["name"].as_str().unwrap().to_owned()
    };
    let all: BTreeSet<_> = folders.iter().map(name).collect();
    for folder in folders {
        let read = |name| fs::read_to_string(folder.join(name)).unwrap();
        for name in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-BSD-3-Clause"] {
            assert_eq!(read(name), fs::read_to_string(root.join(name)).unwrap(), "{folder:?}");
        }
        let readme = read("README.md");
        // A link must not lead to a file of the repository, because the registry has only the files of the
        // crate's package. docs.rs does not even have the package's other files.
        for text in [&readme, &read("CHANGELOG.md")] {
            assert_eq!(links(text), [""; 0], "links in {folder:?} lead out of its package");
        }
        let (example, source) = if folder.join("src/lib.rs").exists() {
            ("```rust", "src/lib.rs")
        } else {
            ("```", "src/main.rs")
        };
        assert!(readme.contains(example), "{folder:?}: README.md has no example");
        let is_compiled = read(source).contains("#[doc = include_str!(\"../README.md\")]");
        assert_eq!(is_compiled, source == "src/lib.rs", "{folder:?}: the example is not tested");
        let manifest: Table = read("Cargo.toml").parse().unwrap();
        let documentation = format!("https://docs.rs/{}", name(&folder));
        assert_eq!(manifest["package"]["documentation"].as_str(), Some(&*documentation));
        for kind in ["dependencies", "build-dependencies"] {
            let names = manifest.get(kind).and_then(|names| names.as_table()).into_iter();
            for ours in names.flat_map(Table::keys).filter(|name| name.starts_with("hypertrace")) {
                assert!(all.contains(ours), "{folder:?} depends on {ours}, which is not published");
            }
        }
    }
}

/// Returns the text of Rust sources as one line. Strings that are broken over several lines are joined.
fn sources(root: &Path) -> String {
    let sources =
        files(root, &["rs"]).into_iter().filter(|path| !path.to_str().unwrap().contains("/tests/"));
    let text: String = sources.map(|path| fs::read_to_string(path).unwrap()).collect();
    let joined = text.lines().map(|line| match line.strip_suffix('\\') {
        Some(line) => line.trim_start().to_owned(),
        None => format!("{} ", line.trim_start()),
    });
    joined.collect()
}

#[test]
fn the_page_of_the_interface_has_the_constants_of_the_code() {
    let page = fs::read_to_string(root().join("docs/abi.md")).unwrap();
    let lease = RESERVED.iter().find(|(number, _)| *number == id::LEASE).unwrap().1;
    for text in [
        format!("`{PCI_SUBSYSTEM:04x}`. Class: `{PCI_CLASS:04x}`"),
        format!("Revision: {PCI_REVISION}."),
        format!("- {} `{lease}`", id::LEASE),
    ] {
        assert!(page.contains(&text), "docs/abi.md does not have {text:?}");
    }
}

#[test]
fn each_message_in_troubleshooting_is_one_of_the_program() {
    let root = root();
    let sources = sources(&root);
    let page = fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
    let messages = page.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next());
    let mut read = 0;
    for message in messages {
        let mut parts = message.split("..").map(str::trim);
        assert!(parts.all(|part| sources.contains(part)), "no message: {message}");
        read += 1;
    }
    assert!(read > 20, "{read}");
}
