//! Generation of the C header: declarations from the C library's source, macros from its `macros.h`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Sources of the declarations, in the crate of the C library.
const SOURCES: [&str; 3] = ["src/site.rs", "src/event.rs", "src/process.rs"];

/// Includes of the header, which the macros need too.
const INCLUDES: &str = "\
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__cplusplus)
#include <cstring>
#include <type_traits>
#endif
";

/// Rust names and their names in C.
const NAMES: [(&str, &str); 5] = [
    ("CallSite", "hypertrace_site"),
    ("Counts", "hypertrace_counts"),
    ("Options", "hypertrace_options"),
    ("Outcome", "hypertrace_outcome"),
    ("Reply", "hypertrace_reply"),
];

/// Returns the path of the header.
pub fn path(root: &Path) -> PathBuf {
    root.join("guest-lib/include/hypertrace.h")
}

/// Generates the header's text.
///
/// # Errors
/// If a source is missing, or cbindgen cannot read it.
pub fn text(root: &Path) -> Result<String> {
    let crate_folder = root.join("guest-lib/capi");
    let read = |name: &str| {
        let file = crate_folder.join(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        cpp_compat: true,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        include_guard: Some("HYPERTRACE_H".into()),
        no_includes: true,
        usize_is_size_t: true,
        after_includes: Some(INCLUDES.trim_end().to_owned()),
        header: Some(read("top.h")?.trim_end().to_owned()),
        trailer: Some(read("macros.h")?.trim_end().to_owned()),
        line_length: 100,
        tab_width: 4,
        ..cbindgen::Config::default()
    };
    config.enumeration.rename_variants = cbindgen::RenameRule::ScreamingSnakeCase;
    config.enumeration.prefix_with_name = true;
    config.export.rename = NAMES.map(|(rust, c)| (rust.to_owned(), c.to_owned())).into();

    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(crate_folder.join(source));
    }
    let bindings = builder.generate().context("cannot make the C header")?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    String::from_utf8(header).context("the C header is not UTF-8")
}

/// Writes the header: `cargo xtask header`.
///
/// # Errors
/// As [`text`], or if it cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let path = path(root);
    fs::write(&path, text(root)?).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_as_its_sources_say() {
        let root = crate::root().unwrap();

        let wanted = text(&root).unwrap();

        let found = fs::read_to_string(path(&root)).unwrap_or_default();
        assert!(found == wanted, "run `cargo xtask header` and commit {}", path(&root).display());
    }
}
