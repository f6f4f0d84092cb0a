//! Installation of the C library: headers, libraries and the files of pkg-config and CMake.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, bail, ensure};

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
/// If the library cannot be built, or a file cannot be written; the error's chain says which file.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let Ok(relative) = options.prefix.strip_prefix("/") else {
        bail!("--prefix {}: give an absolute path", options.prefix.display())
    };
    let prefix = options.prefix.to_str().context("--prefix is not UTF-8")?;
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--release", "--locked", "--package", "hypertrace-c"]);
    ensure!(build.status()?.success(), "the C library does not compile");
    let to = options.destdir.join(relative);
    copy(root, &target_folder(root)?.join("release"), &to, prefix)?;
    println!(
        "installed in {}; ask pkg-config --cflags --libs hypertrace, or find_package(hypertrace) of CMake",
        to.display()
    );
    Ok(())
}

/// Copies the library from the folder `built`, and the library's headers, to `to`, where lib and include are.
/// The files for pkg-config and CMake tell programs that the library is in `prefix`.
///
/// # Errors
/// If a file cannot be written; the error's chain says which file.
pub fn copy(root: &Path, built: &Path, to: &Path, prefix: &str) -> Result<()> {
    let put = |from: &Path, folder: &str| {
        let folder = to.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let file = folder.join(from.file_name().unwrap_or_default());
        fs::copy(from, &file)
            .with_context(|| format!("cannot copy {} to {}", from.display(), file.display()))?;
        Ok::<_, Error>(file)
    };
    for name in ["libhypertrace.a", "libhypertrace.so"] {
        put(&built.join(name), "lib")?;
    }
    for header in entries(&root.join("guest-lib/include"))? {
        put(&header, "include")?;
    }
    let capi = root.join("guest-lib/capi");
    for (name, folder) in [
        ("hypertrace.pc.in", "lib/pkgconfig"),
        ("hypertrace-config.cmake", "lib/cmake/hypertrace"),
        ("hypertrace-config-version.cmake", "lib/cmake/hypertrace"),
    ] {
        let file = put(&capi.join(name), folder)?;
        let text = fs::read_to_string(&file)?;
        // All crates of the tree have one version.
        let text = text.replace("@prefix@", prefix).replace("@version@", env!("CARGO_PKG_VERSION"));
        fs::remove_file(&file)?;
        fs::write(file.parent().unwrap_or(to).join(name.trim_end_matches(".in")), text)?;
    }
    Ok(())
}
