//! Builds the guest image that this VMM runs: `hypertrace-guest` as a static library for the same target,
//! linked to a fixed address. Cargo has no stable way to depend on another crate's binary, so this script
//! runs cargo. The script also generates the functions of the VMM's `trace-events`.

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Paths, relative to this package's folder, that the image depends on besides its sources.
const WATCHED: [&str; 4] = ["../../Cargo.toml", "../../Cargo.lock", "image.ld", "build.rs"];

fn main() -> Result<(), Box<dyn Error>> {
    for path in WATCHED {
        println!("cargo::rerun-if-changed={path}");
    }
    hypertrace_trace_build::Builder::new().file("trace-events").generate_or_exit();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let image = out.join("guest.elf");
    let library = build_library(&out)?;
    watch_sources(&library)?;
    link(&library, &image)?;
    println!("cargo::rustc-env=GUEST_IMAGE={}", image.display());
    Ok(())
}

/// Compiles the guest library with its dependencies into one archive.
fn build_library(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    // The target folder is a separate one, because the outer cargo holds the lock of its own target folder
    // while this script runs.
    let target_dir = out.join("guest");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .args(["rustc", "--package", "hypertrace-guest", "--features", "image"])
        .args(["--profile", "guest", "--crate-type", "staticlib"])
        // With an explicit target, rustflags do not apply to build scripts and proc macros. The path of the
        // library below also needs this target.
        .args(["--target", &target])
        // The outer cargo has resolved and fetched the dependencies, and the inner cargo must neither change
        // the lock file nor use the network.
        .arg("--frozen")
        .arg("--target-dir")
        .arg(&target_dir);
    // The options of the outer build do not suit a freestanding image. The image can have no instrumentation,
    // and no CPU features that the VMM does not enable (AVX). Clippy must not replace rustc in this build.
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        let leaks = [
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "CLIPPY_ARGS",
            "CLIPPY_CONF_DIR",
            "RUSTC_WRAPPER",
        ]
        .contains(&name_text.as_ref())
            || name_text.starts_with("RUSTC_WORKSPACE_WRAPPER")
            || name_text.starts_with("CARGO_BUILD_")
            || name_text.starts_with("CARGO_PROFILE_")
            || (name_text.starts_with("CARGO_TARGET_") && name_text.ends_with("_RUSTFLAGS"))
            || name_text == "CARGO_TARGET_DIR";
        if leaks {
            cargo.env_remove(&name);
        }
    }
    cargo.env("RUSTFLAGS", "-Crelocation-model=static");
    run(&mut cargo)?;
    Ok(target_dir.join(target).join("guest/libhypertrace_guest.a"))
}

/// Watches the archive's sources, as cargo lists them, and the manifests of their packages.
fn watch_sources(library: &Path) -> Result<(), Box<dyn Error>> {
    let list = fs::read_to_string(library.with_extension("d"))?;
    let (_, sources) = list.split_once(": ").ok_or("cargo's list of sources has another form")?;
    let mut watched = BTreeSet::new();
    for source in sources.trim_end().replace("\\ ", "\0").split(' ') {
        let source = PathBuf::from(source.replace('\0', " "));
        watched.extend(
            source.ancestors().map(|dir| dir.join("Cargo.toml")).find(|file| file.exists()),
        );
        watched.insert(source);
    }
    for path in watched {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    Ok(())
}

/// Links the archive into an ELF file that is loaded at the addresses in image.ld. Symbols are kept, to look
/// up the rip of an error.
fn link(library: &Path, image: &Path) -> Result<(), Box<dyn Error>> {
    // The linker comes from cargo's configuration, or is rustc's default.
    let linker = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    run(Command::new(linker)
        .args(["-nostdlib", "-static", "-no-pie", "-Wl,--gc-sections", "-Wl,--build-id=none"])
        .args(["-Wl,--strip-debug", "-Wl,-T,image.ld", "-o"])
        .arg(image)
        .arg(library))
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status =
        command.status().map_err(|e| format!("cannot start {:?}: {e}", command.get_program()))?;
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok(())
}
