//! The source tree's files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the paths in a folder, sorted.
///
/// # Errors
/// If the folder cannot be read.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the files below a folder, sorted, without hidden files, links and files that cargo makes.
///
/// # Errors
/// If a folder cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_symlink() || name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the name of the package that a manifest describes, or an empty name if the manifest describes a
/// workspace.
///
/// # Errors
/// If the manifest cannot be read.
pub fn package_name(manifest: &Path) -> Result<String> {
    let text = fs::read_to_string(manifest)?;
    let name = text.lines().find_map(|line| line.strip_prefix("name = "));
    Ok(name.unwrap_or_default().trim_matches('"').to_owned())
}
