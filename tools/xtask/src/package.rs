//! Packages for users: Debian packages, archives of static programs, and a wheel for Python. `packages.toml`
//! lists the files of the Debian packages and of the archives.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};
use serde::Deserialize;

use crate::command::{cargo, target_folder};
use crate::fetch;
use crate::install;
use crate::tree;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const X86: &str = "x86_64-unknown-linux-gnu";
const ARM: &str = "aarch64-unknown-linux-gnu";

/// Options of the packages
#[derive(clap::Args)]
pub struct Options {
    /// Folder to write the packages to
    #[arg(short, long, value_name = "DIR", default_value = "target/packages")]
    output: PathBuf,

    /// Make hypertrace-guest for AArch64 too, with compilers that are fetched
    #[arg(long)]
    aarch64: bool,

    /// Make no wheel for Python, which needs python3 with pip
    #[arg(long)]
    no_wheel: bool,

    /// Take programs and libraries from this folder, and build nothing
    #[arg(long, value_name = "DIR", conflicts_with = "aarch64")]
    built: Option<PathBuf>,
}

/// Contents of `packages.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    package: Vec<Package>,
}

/// A package. `packages.toml` says what the fields are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    name: String,
    summary: String,
    text: String,
    #[serde(default)]
    programs: Vec<String>,
    #[serde(default)]
    control: Vec<String>,
    scripts: Option<PathBuf>,
    files: Vec<(String, String, u32)>,
}

/// Places of a package's files, and the machine for which the files were built.
struct Built {
    /// The machine's name in Debian's packages, and the machine's name in archives
    machine: (&'static str, &'static str),
    programs: PathBuf,
    libraries: PathBuf,
    /// Folder with the installed C library, the manual pages, and the completions
    made: PathBuf,
}

/// Builds the programs and makes all packages.
///
/// # Errors
/// If a program does not compile, or a file cannot be written. The error's chain names the program or file.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let known: Known =
        toml::from_str(include_str!("../packages.toml")).context("tools/xtask/packages.toml")?;
    let target = target_folder(root)?;
    let output = std::path::absolute(&options.output)?;
    fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
    let made = tempfile::tempdir()?;

    let (programs, libraries) = if let Some(built) = &options.built {
        (built.clone(), built.clone())
    } else {
        let libraries = ["hypertrace-qemu-plugin", "hypertrace-qemu-plugin-7", "hypertrace-c"];
        build(root, libraries, |_| {})?;
        let programs = known.package.iter().flat_map(|package| &package.programs);
        build(root, programs, |cargo| is_static(cargo, X86))?;
        (target.join(X86).join("release"), target.join("release"))
    };
    if !options.no_wheel {
        wheel(root, &libraries, &output)?;
    }
    install::copy(root, &libraries, &made.path().join("usr"), "/usr")?;
    let hypertrace = || Command::new(programs.join("hypertrace"));
    succeed(hypertrace().arg("man").arg(made.path().join("man")))?;
    for shell in ["bash", "zsh", "fish"] {
        let file = fs::File::create(made.path().join(shell))?;
        succeed(hypertrace().args(["completions", shell]).stdout(file))?;
    }
    let built =
        Built { machine: ("amd64", "x86_64"), programs, libraries, made: made.path().to_owned() };
    for package in &known.package {
        make(root, package, &built, &output)?;
    }
    if options.aarch64 {
        let target = target.join("cross");
        let find = |program| {
            let tool = fetch::find(program).map_err(Error::msg)?;
            let folder = fetch::fetch(&[tool]).remove(tool.name.as_str());
            let folder = folder.with_context(|| format!("cannot fetch {program}"))??;
            Ok::<_, Error>(folder.join(program))
        };
        let (rustc, linker) = (find("aarch64-rustc")?, find("aarch64-linux-gnu-gcc")?);
        let package = known.package.iter().find(|package| package.name == "hypertrace-guest");
        let package = package.context("tools/xtask/packages.toml has no hypertrace-guest")?;
        build(root, &package.programs, |cargo| {
            is_static(cargo, ARM);
            // These packages have their own target folder, because their compiler is not the compiler of this
            // tree.
            cargo.env("RUSTC", &rustc).env("CARGO_TARGET_DIR", &target);
            cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &linker);
        })?;
        let built = Built {
            machine: ("arm64", "aarch64"),
            programs: target.join(ARM).join("release"),
            libraries: PathBuf::new(),
            made: PathBuf::new(),
        };
        make(root, package, &built, &output)?;
    }
    Ok(())
}

/// Builds crates of this tree for users' packages. `more` adds options to the command of cargo.
fn build(
    root: &Path,
    packages: impl IntoIterator<Item = impl AsRef<str>>,
    more: impl Fn(&mut Command),
) -> Result<()> {
    let mut cargo = Command::new(cargo());
    cargo.current_dir(root).args(["build", "--locked", "--release"]);
    for name in packages {
        cargo.args(["--package", name.as_ref()]);
    }
    more(&mut cargo);
    succeed(&mut cargo)
}

/// Makes cargo build programs that need no library.
fn is_static(cargo: &mut Command, target: &str) {
    let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
    cargo.args(["--target", target]).env(variable, "-Ctarget-feature=+crt-static");
}

/// Makes the Debian package and, for a package with programs, an archive.
fn make(root: &Path, package: &Package, built: &Built, output: &Path) -> Result<()> {
    let Package { name, summary, text, .. } = package;
    let (debian, archive) = built.machine;
    let stage = tempfile::tempdir()?;
    fs::set_permissions(stage.path(), Permissions::from_mode(0o755))?;
    let usr = stage.path().join("usr");
    for (from, to, mode) in &package.files {
        let places = [
            ("{programs}/", &built.programs),
            ("{libraries}/", &built.libraries),
            ("{made}/", &built.made),
        ];
        let mut found =
            places.iter().filter_map(|(word, folder)| Some(folder.join(from.strip_prefix(word)?)));
        let from = found.next().unwrap_or_else(|| root.join(from));
        copy(&from, &usr.join(to.replace("@version@", VERSION)), *mode)?;
    }
    for licence in ["LICENSE-APACHE", "LICENSE-BSD-3-Clause"] {
        copy(&root.join(licence), &usr.join("share/doc").join(name).join(licence), 0o644)?;
    }

    if !package.programs.is_empty() {
        let whole = format!("{name}-{VERSION}-{archive}");
        let file = output.join(format!("{whole}.tar.gz"));
        succeed(
            Command::new("tar")
                .args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0"])
                .args(["--numeric-owner", "--transform", &format!("s,^\\.,{whole},")])
                .arg("--file")
                .arg(&file)
                .arg("--directory")
                .arg(&usr)
                .arg("."),
        )?;
        println!("{}", file.display());
    }

    let control = stage.path().join("DEBIAN");
    fs::create_dir(&control)?;
    if let Some(scripts) = &package.scripts {
        copy(&root.join(scripts), &control, 0o755)?;
    }
    let text = text.trim().replace('\n', "\n ");
    let more: String = package.control.iter().map(|line| format!("{line}\n")).collect();
    let fields = format!(
        "Package: {name}\nVersion: {VERSION}\nArchitecture: {}\nSection: devel\nPriority: optional\n\
         Maintainer: the hypertrace maintainers\n{more}Description: {summary}\n {text}\n",
        debian
    );
    fs::write(control.join("control"), fields)?;
    let file = output.join(format!("{name}_{VERSION}_{}.deb", debian));
    succeed(
        Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group"])
            .arg(stage.path())
            .arg(&file),
    )
}

/// Makes the Python package for this kind of machine. The package contains the library.
fn wheel(root: &Path, libraries: &Path, output: &Path) -> Result<()> {
    // pip also writes files to the folder that it builds, so it builds a copy of the folder.
    let stage = tempfile::tempdir()?;
    let source = root.join("bindings/python");
    for name in ["pyproject.toml", "README.md", "hypertrace"] {
        copy(&source.join(name), &stage.path().join(name), 0o644)?;
    }
    let library = "libhypertrace.so";
    copy(&libraries.join(library), &stage.path().join("hypertrace").join(library), 0o644)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.arg("--config-settings=--build-option=--plat-name=linux_x86_64").arg("--wheel-dir");
    succeed(pip.arg(output).arg(stage.path()))
        .context("no wheel for Python: --no-wheel leaves it out")
}

/// Copies a file, or the files of a folder. Replaces `@version@` in texts by the version.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if from.is_dir() {
        for file in tree::files(from)? {
            copy(&file, &to.join(file.strip_prefix(from)?), mode)?;
        }
        return Ok(());
    }
    let failed = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).with_context(failed)?;
    let bytes = fs::read(from).with_context(failed)?;
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => text.replace("@version@", VERSION).into_bytes(),
        Err(other) => other.into_bytes(),
    };
    fs::write(to, bytes).with_context(failed)?;
    fs::set_permissions(to, Permissions::from_mode(mode)).with_context(failed)
}

fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} has failed");
    Ok(())
}
