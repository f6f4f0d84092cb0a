//! Installation of the C library: headers, libraries and the file of pkg-config.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, target_folder};
use crate::tree::entries;

/// Options of the installation
#[derive(clap::Args)]
pub struct Options {
    /// Folder of lib and include
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,

    /// Folder in place of `/`, for makers of packages
    #[arg(long, value_name = "DIR", default_value = "/")]
    destdir: PathBuf,
}

/// Builds the C library and copies it with its headers.
///
/// # Errors
/// If it cannot be built, or a file cannot be written; the chain says which.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let Ok(relative) = options.prefix.strip_prefix("/") else {
        bail!("--prefix {}: give an absolute path", options.prefix.display())
    };
    let prefix = options.prefix.to_str().context("--prefix is not UTF-8")?;
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--release", "--locked", "--package", "hypertrace-c"]);
    ensure!(build.status()?.success(), "the C library does not compile");
    let target = target_folder(root)?;

    let to = options.destdir.join(relative);
    let mut files = Vec::new();
    for name in ["libhypertrace.a", "libhypertrace.so"] {
        files.push((target.join("release").join(name), to.join("lib")));
    }
    for header in entries(&root.join("guest-lib/include"))? {
        files.push((header, to.join("include")));
    }
    for (from, folder) in &files {
        let name = from.file_name().context("a file has a name")?;
        make(folder)?;
        fs::copy(from, folder.join(name))
            .with_context(|| format!("cannot copy {} to {}", from.display(), folder.display()))?;
    }

    let template = root.join("guest-lib/capi/hypertrace.pc.in");
    let template = fs::read_to_string(&template)
        .with_context(|| format!("cannot read {}", template.display()))?;
    // All crates of the tree have one version.
    let text = template.replace("@prefix@", prefix).replace("@version@", env!("CARGO_PKG_VERSION"));
    let folder = to.join("lib/pkgconfig");
    make(&folder)?;
    let file = folder.join("hypertrace.pc");
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("installed in {}; ask pkg-config --cflags --libs hypertrace", to.display());
    Ok(())
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}
