//! Generation of the C headers. The declarations come from the source of the C library, and the texts around
//! the declarations come from `.h` files. The header that needs no library contains constants from the crate
//! `abi`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::constants;

/// A header.
struct Header {
    path: &'static str,
    guard: &'static str,
    includes: &'static str,
    /// Sources of the declarations, in the crate of the C library.
    sources: &'static [&'static str],
    /// Text before the declarations.
    top: &'static str,
    /// Text after the declarations.
    end: Option<&'static str>,
}

const HEADERS: [Header; 2] = [
    Header {
        path: "guest-lib/include/hypertrace.h",
        guard: "HYPERTRACE_H",
        // The header's macros need some of these headers.
        includes: "\
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__cplusplus)
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#endif",
        sources: &["src/site.rs", "src/event.rs", "src/process.rs", "src/functions.rs"],
        top: "top.h",
        end: Some("macros.h"),
    },
    Header {
        path: "guest-lib/include/qemu-hypertrace.h",
        guard: "QEMU_HYPERTRACE_H",
        // The header of 2016 had the same includes.
        includes: "#include <stdint.h>\n#include <sys/types.h>",
        sources: &["src/interface_2016.rs"],
        top: "interface_2016.h",
        end: None,
    },
];

/// Header for firmware and kernels. The header's constants stand between the lines [`BEGIN`] and [`END`].
const BARE: &str = "guest-lib/include/hypertrace-bare.h";
const BEGIN: &str =
    "/* Constants of docs/abi.md, by `cargo xtask header`. Indices are of words of 64 bits. */\n";
const END: &str = "/* End of the constants. */\n";

/// Names of types in Rust, and the names of the same types in C.
const NAMES: [(&str, &str); 5] = [
    ("CallSite", "hypertrace_site"),
    ("Counts", "hypertrace_counts"),
    ("Options", "hypertrace_options"),
    ("Outcome", "hypertrace_outcome"),
    ("Reply", "hypertrace_reply"),
];

/// Generates a header's text.
fn text(root: &Path, header: &Header) -> Result<String> {
    let end = header.end.map(|name| read(root, name)).transpose()?;
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        cpp_compat: true,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        include_guard: Some(header.guard.into()),
        no_includes: true,
        usize_is_size_t: true,
        after_includes: Some(header.includes.to_owned()),
        header: Some(read(root, header.top)?.trim_end().to_owned()),
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
        builder = builder.with_src(root.join("guest-lib/capi").join(source));
    }
    let bindings = builder.generate().context("cannot make the C header")?;
    let mut written = Vec::new();
    bindings.write(&mut written);
    let text = String::from_utf8(written).context("the C header is not UTF-8")?;
    // cbindgen ends the guard before the last part. The code moves the guard's end behind the last part. A
    // source may include the header twice, and then gets the last part only once.
    let guard_end = format!("\n#endif  /* {} */\n", header.guard);
    let (before, after) = text.split_once(&guard_end).context("the C header has no guard")?;
    // C89 has no `//` comments.
    Ok(format!("{before}{after}{guard_end}")
        .replace("// __cplusplus", "/* __cplusplus */")
        .replace("// extern \"C\"", "/* extern \"C\" */"))
}

/// Returns the header for firmware with the present constants.
fn bare(root: &Path) -> Result<String> {
    let text =
        fs::read_to_string(root.join(BARE)).with_context(|| format!("cannot read {BARE}"))?;
    let parts = text.split_once(BEGIN).zip(text.split_once(END));
    let ((before, _), (_, after)) = parts.context("no place for constants")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", constants::text()))
}

/// Returns the paths and texts of all headers.
fn headers(root: &Path) -> Result<Vec<(&'static str, String)>> {
    let mut texts = Vec::new();
    for header in &HEADERS {
        texts.push((header.path, text(root, header)?));
    }
    texts.push((BARE, bare(root)?));
    Ok(texts)
}

/// Writes the headers: `cargo xtask header`.
///
/// # Errors
/// If a source is missing, cbindgen cannot read it, or a header cannot be written.
pub fn write(root: &Path) -> Result<()> {
    for (path, text) in headers(root)? {
        fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// Reads a file of the C library.
fn read(root: &Path, name: &str) -> Result<String> {
    let file = root.join("guest-lib/capi").join(name);
    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_are_as_their_sources_say() {
        let root = crate::root().unwrap();
        for (path, text) in headers(&root).unwrap() {
            let found = fs::read_to_string(root.join(path)).unwrap_or_default();
            assert!(found == text, "run `cargo xtask header` and commit {path}");
        }
    }
}
