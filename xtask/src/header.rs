//! Generation of the C headers: declarations from the C library's source, texts around them from its `.h` files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::bare;

/// A header.
struct Header {
    path: &'static str,
    guard: &'static str,
    includes: &'static str,
    /// Sources of the declarations, in the crate of the C library.
    sources: &'static [&'static str],
    /// Text before them.
    top: &'static str,
    /// Text after them.
    end: Option<&'static str>,
}

const HEADERS: [Header; 2] = [
    Header {
        path: "guest-lib/include/hypertrace.h",
        guard: "HYPERTRACE_H",
        // The macros need them too.
        includes: "\
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__cplusplus)
#include <cstring>
#include <type_traits>
#endif",
        sources: &["src/site.rs", "src/event.rs", "src/process.rs", "src/functions.rs"],
        top: "top.h",
        end: Some("macros.h"),
    },
    Header {
        path: "guest-lib/include/qemu-hypertrace.h",
        guard: "QEMU_HYPERTRACE_H",
        // Those of 2016.
        includes: "#include <stdint.h>\n#include <sys/types.h>",
        sources: &["src/interface_2016.rs"],
        top: "interface_2016.h",
        end: None,
    },
];

/// Rust names and their names in C.
const NAMES: [(&str, &str); 5] = [
    ("CallSite", "hypertrace_site"),
    ("Counts", "hypertrace_counts"),
    ("Options", "hypertrace_options"),
    ("Outcome", "hypertrace_outcome"),
    ("Reply", "hypertrace_reply"),
];

/// Generates a header's text.
fn text(root: &Path, header: &Header) -> Result<String> {
    let crate_folder = root.join("guest-lib/capi");
    let read = |name: &str| {
        let file = crate_folder.join(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let end = header.end.map(read).transpose()?;
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        cpp_compat: true,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        include_guard: Some(header.guard.into()),
        no_includes: true,
        usize_is_size_t: true,
        after_includes: Some(header.includes.to_owned()),
        header: Some(read(header.top)?.trim_end().to_owned()),
        trailer: end.map(|end| end.trim_end().to_owned()),
        line_length: 100,
        tab_width: 4,
        ..cbindgen::Config::default()
    };
    config.enumeration.rename_variants = cbindgen::RenameRule::ScreamingSnakeCase;
    config.enumeration.prefix_with_name = true;
    config.export.rename = NAMES.map(|(rust, c)| (rust.to_owned(), c.to_owned())).into();

    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in header.sources {
        builder = builder.with_src(crate_folder.join(source));
    }
    let bindings = builder.generate().context("cannot make the C header")?;
    let mut written = Vec::new();
    bindings.write(&mut written);
    let text = String::from_utf8(written).context("the C header is not UTF-8")?;
    // cbindgen ends the guard before the last part, which a source must not get twice either.
    let guard_end = format!("\n#endif  /* {} */\n", header.guard);
    let (before, after) = text.split_once(&guard_end).context("the C header has no guard")?;
    // C89 has no such comments.
    Ok(format!("{before}{after}{guard_end}")
        .replace("// __cplusplus", "/* __cplusplus */")
        .replace("// extern \"C\"", "/* extern \"C\" */"))
}

/// Writes the headers: `cargo xtask header`.
///
/// # Errors
/// If a source is missing, cbindgen cannot read it, or a header cannot be written.
pub fn write(root: &Path) -> Result<()> {
    for header in &HEADERS {
        let path = root.join(header.path);
        let text = text(root, header)?;
        write_to(&path, &text)?;
    }
    write_to(&root.join(bare::PATH), &bare::text(root)?)
}

fn write_to(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_are_as_their_sources_say() {
        let root = crate::root().unwrap();
        for header in &HEADERS {
            is_committed(&root, header.path, &text(&root, header).unwrap());
        }
        is_committed(&root, bare::PATH, &bare::text(&root).unwrap());
    }

    #[track_caller]
    fn is_committed(root: &Path, path: &str, wanted: &str) {
        let found = fs::read_to_string(root.join(path)).unwrap_or_default();
        assert!(found == wanted, "run `cargo xtask header` and commit {path}");
    }
}
