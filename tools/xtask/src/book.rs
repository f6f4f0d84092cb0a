//! The pages of the book. mdBook shows only the pages in one folder, but the documents link to files all over
//! the source tree. Therefore this module copies each linked file as a page into the book's folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

/// Folder of the pages, which book.toml names.
const FOLDER: &str = "target/book-pages";
/// The book's table of contents in the tree, and its name in the book's folder.
const CONTENTS: (&str, &str) = ("docs/SUMMARY.md", "SUMMARY.md");

/// Writes the pages.
///
/// # Errors
/// If a file cannot be read or written, or a link leads nowhere.
pub fn write(root: &Path) -> Result<()> {
    write_to(root, &root.join(FOLDER))
}

fn write_to(root: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let mut waiting = vec![PathBuf::from("README.md")];
    let contents = fs::read_to_string(root.join(CONTENTS.0))?;
    let contents = linked(&contents, |link| {
        let path = normal(&Path::new(CONTENTS.0).with_file_name(link));
        waiting.push(path.clone());
        Ok(page(root, &path).display().to_string())
    })?;
    let listed = waiting.iter().cloned().collect::<BTreeSet<_>>();
    let mut made = BTreeSet::new();
    while let Some(path) = waiting.pop() {
        if !made.insert(path.clone()) {
            continue;
        }
        let page = folder.join(page(root, &path));
        fs::create_dir_all(page.parent().unwrap_or(folder))?;
        if path.extension().is_some_and(|extension| extension == "png") {
            fs::copy(root.join(&path), page)?;
            continue;
        }
        let up = page.strip_prefix(folder)?.components().count() - 1;
        let text = linked(&text(root, &path)?, |link| {
            let (file, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
            if file.is_empty() {
                return Ok(link.to_owned());
            }
            let beside =
                if root.join(&path).is_dir() { path.join(file) } else { path.with_file_name(file) };
            let target = normal(&beside);
            let there = root.join(&target).exists();
            there.then_some(()).with_context(|| format!("{}: no file {link}", path.display()))?;
            waiting.push(target.clone());
            Ok(format!("{}{}{anchor}", "../".repeat(up), self::page(root, &target).display()))
        })?;
        fs::write(page, text)?;
    }
    let others = made.difference(&listed).map(|path| (path, page(root, path)));
    let others = others.filter(|(_, page)| page.extension().is_some_and(|of| of == "md"));
    // A folder and the README.md in the folder are one page.
    let others = others.map(|(path, page)| (page, path.display().to_string()));
    let others = others.collect::<BTreeMap<_, _>>();
    let lines = others.iter().map(|(page, name)| format!("- [{name}]({})\n", page.display()));
    let contents = contents.replacen("# Summary\n", "# Summary\n\n[hypertrace](index.md)", 1);
    let contents =
        format!("{contents}\n# Files of the source tree\n\n{}", String::from_iter(lines));
    Ok(fs::write(folder.join(CONTENTS.1), contents)?)
}

/// Returns the page in the book that shows a file or a folder of the tree. A page or a picture of the tree
/// keeps its path in the book. A README.md becomes `index.md`, because mdBook makes `index.html` of a
/// README.md, but does not change the links to the README.md.
fn page(root: &Path, path: &Path) -> PathBuf {
    let name = path.to_string_lossy();
    match root.join(path).is_dir() {
        true => path.join("index.md"),
        false if path.ends_with("README.md") => path.with_file_name("index.md"),
        false if name.ends_with(".md") || name.ends_with(".png") => path.to_owned(),
        false => format!("{name}.md").into(),
    }
}

/// Returns the text of a page: the file's own text, its source, or the names in a folder.
fn text(root: &Path, path: &Path) -> Result<String> {
    let (full, name) = (root.join(path), path.display());
    let is_page = full.extension().is_some_and(|extension| extension == "md");
    let shown = if is_page { full.clone() } else { full.join("README.md") };
    if shown.exists() {
        return Ok(fs::read_to_string(shown)?);
    }
    if full.is_dir() {
        let entries = crate::tree::entries(&full)?;
        let names = entries.iter().filter_map(|entry| entry.file_name());
        let names = names.map(|name| format!("- `{}`\n", name.to_string_lossy()));
        return Ok(format!("# `{name}`\n\n{}", String::from_iter(names)));
    }
    let source = fs::read_to_string(&full).with_context(|| format!("cannot read {name}"))?;
    let language = path.extension().unwrap_or_default().to_string_lossy();
    // The block has four backticks, because comments in a source file contain blocks with three backticks.
    // `ignore` keeps mdBook from offering a button that runs the block, because the block is only a part of a
    // crate.
    Ok(format!("# `{name}`\n\n````{language},ignore\n{source}````\n"))
}

/// Returns a page with other destinations for its links within the tree. `to` returns each new destination.
/// Text in blocks of code does not count as a link.
fn linked(page: &str, mut to: impl FnMut(&str) -> Result<String>) -> Result<String> {
    let (mut out, mut is_code) = (String::new(), false);
    for line in page.split_inclusive('\n') {
        is_code ^= line.trim_start().starts_with("```");
        let mut parts = line.split("](");
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            out.push_str("](");
            match part.split_once(')').filter(|(link, _)| !is_code && !link.contains("://")) {
                Some((link, rest)) => out.extend([&*to(link)?, ")", rest]),
                None => out.push_str(part),
            }
        }
    }
    Ok(out)
}

/// Returns a path without `..` and `.`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = out.pop(),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_of_the_book_leads_to_a_page_that_the_book_shows() {
        let root = crate::root().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();

        write_to(&root, folder).unwrap();

        let links = |path: &Path| {
            let mut found = Vec::new();
            let text = fs::read_to_string(path).unwrap();
            let beside = |link: &str| {
                let file = link.split('#').next().unwrap();
                if !file.is_empty() {
                    found.push(normal(&path.with_file_name(file)));
                }
                Ok(String::new())
            };
            linked(&text, beside).unwrap();
            found
        };
        let listed = links(&folder.join("SUMMARY.md"));
        let pages = listed.iter().collect::<BTreeSet<_>>();
        assert_eq!((pages.len(), &listed[0]), (listed.len(), &folder.join("index.md")));
        let mut followed = 0;
        for page in &listed {
            for link in links(page) {
                let is_picture = link.extension().is_some_and(|extension| extension == "png");
                assert!(
                    pages.contains(&link) || is_picture,
                    "{}: {}",
                    page.display(),
                    link.display()
                );
                assert!(link.is_file(), "{}: {}", page.display(), link.display());
                followed += 1;
            }
        }
        assert!(followed > 300, "{followed}");
        // A page of the source has the file's text.
        let source = fs::read_to_string(folder.join("guest-lib/include/hypertrace.h.md")).unwrap();
        assert!(source.contains("hypertrace_event"), "{source}");
    }
}
