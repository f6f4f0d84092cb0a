//! Tests of the published crates without this tree. `cargo package` makes the crates as a registry would have
//! them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_test_support::capability;
use kvm_ioctls::Kvm;

use crate::command::{cargo, target_folder};
use crate::{root, tree};

/// Makes an empty folder for the packages and their builds. The results of an earlier run are removed,
/// because cargo builds a registry's crate only once for each version.
fn folder(name: &str) -> PathBuf {
    let folder = target_folder(&root().unwrap()).unwrap().join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command to its end, and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{command:?}:\n{text}");
    text
}

/// Returns a cargo command in a folder, with the toolchain that builds this tree.
fn cargo_in(folder: &Path) -> Command {
    let mut command = Command::new(cargo());
    command.current_dir(folder).env("CARGO_TARGET_DIR", folder.join("target"));
    command
}

/// Returns the names of the crates that are published.
fn published(root: &Path) -> Vec<String> {
    let manifests = tree::files(root).unwrap().into_iter().filter(|f| f.ends_with("Cargo.toml"));
    let is_published = |manifest: &PathBuf| {
        let text = fs::read_to_string(manifest).unwrap();
        text.starts_with("[package]") && !text.contains("publish = false")
    };
    manifests.filter(is_published).map(|file| tree::package_name(&file).unwrap()).collect()
}

/// Makes the packages of all published crates, and unpacks each package into its own folder in `into`.
fn unpack(into: &Path) -> Vec<PathBuf> {
    let root = root().unwrap();
    let names = published(&root);
    assert!(names.len() > 15, "{names:?}");
    let packed = tempfile::tempdir().unwrap();
    let mut package = cargo_in(&root);
    package.args(["package", "--no-verify", "--allow-dirty", "--target-dir"]).arg(packed.path());
    package.args(names.iter().flat_map(|name| ["-p", name]));
    let said = run(&mut package);
    assert!(!said.contains("warning"), "{said}");
    let packages = tree::entries(&packed.path().join("package")).unwrap();
    let packages = packages.iter().filter(|file| file.extension().is_some_and(|e| e == "crate"));
    for file in packages.clone() {
        run(Command::new("tar").arg("xzf").arg(file).arg("-C").arg(into));
    }
    let folders = packages.map(|file| into.join(file.file_stem().unwrap())).collect::<Vec<_>>();
    assert_eq!(folders.len(), names.len(), "{folders:?}");
    folders
}

/// Returns lines for a manifest. With these lines, cargo uses these packages instead of a registry's
/// packages.
fn patch(packages: &[PathBuf]) -> String {
    let line = |package: &PathBuf| {
        let name = tree::package_name(&package.join("Cargo.toml")).unwrap();
        format!("{name} = {{ path = {package:?} }}\n")
    };
    format!("\n[patch.crates-io]\n{}", packages.iter().map(line).collect::<String>())
}

#[test]
fn the_guest_librarys_package_has_what_is_installed_in_guests() {
    let root = root().unwrap();
    let list = ["package", "--list", "--allow-dirty", "-p", "hypertrace"];
    let listed = run(cargo_in(&root).args(list));
    let is_there = |file: &Path| listed.lines().any(|line| Path::new(line) == file);

    let known = include_str!("../packages.toml");
    let named = known.split('"').filter_map(|word| word.strip_prefix("guest-lib/"));
    let mut read = 0;
    for file in named.map(|name| root.join("guest-lib").join(name)) {
        let files = if file.is_dir() { tree::files(&file).unwrap() } else { vec![file] };
        for file in files.iter().map(|file| file.strip_prefix(root.join("guest-lib")).unwrap()) {
            // The packages need not contain the kernel module of the tests, because only the tests of this
            // tree build that module.
            assert!(is_there(file) || file.starts_with("linux-module/tests"), "{file:?}\n{listed}");
            read += 1;
        }
    }
    assert!(read > 15, "{read}");
}

#[test]
#[ignore = "builds crates of a registry, some of which are downloaded"]
fn a_vmm_of_packaged_crates_traces_its_guest() {
    let place = folder("registry");
    let packages = unpack(&place);
    let vmm = place.join("vmm");
    for file in tree::files(&root().unwrap().join("examples/smallest-vmm")).unwrap() {
        let to =
            vmm.join(file.strip_prefix(root().unwrap().join("examples/smallest-vmm")).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    }
    // The registry is a folder that contains this tree's packages, and the crates of crates.io that this VMM
    // needs.
    let manifest = fs::read_to_string(vmm.join("Cargo.toml")).unwrap();
    fs::write(vmm.join("Cargo.toml"), manifest.clone() + &patch(&packages)).unwrap();
    run(cargo_in(&vmm).args(["vendor", "../vendor"]));
    fs::write(vmm.join("Cargo.toml"), manifest).unwrap();
    fs::remove_file(vmm.join("Cargo.lock")).unwrap();
    for package in packages {
        fs::write(package.join(".cargo-checksum.json"), r#"{"files":{}}"#).unwrap();
        fs::rename(&package, place.join("vendor").join(package.file_name().unwrap())).unwrap();
    }

    let mut test = cargo_in(&vmm);
    test.env("CARGO_TARGET_DIR", place.join("target"));
    let registry = format!("source.packages.directory={:?}", place.join("vendor"));
    test.args(["--config", "source.crates-io.replace-with='packages'", "--config", &registry]);
    test.args(["test", "--offline"]);
    match Kvm::new() {
        Ok(_) => capability::used("kvm"),
        Err(why) => {
            capability::missing("kvm", why);
            test.arg("--no-run");
        }
    }
    let said = run(&mut test);
    assert!(!said.contains("warning"), "{said}");
}

#[test]
#[ignore = "builds all published crates, with other libraries, which are downloaded"]
fn published_crates_build_with_the_oldest_versions_that_they_name() {
    let place = folder("minimal-versions");
    let packages = unpack(&place);
    // The manifests keep only the dependencies for building the crates, because dependencies of tests may
    // need later versions.
    for manifest in packages.iter().map(|package| package.join("Cargo.toml")) {
        let text = fs::read_to_string(&manifest).unwrap();
        let mut is_kept = true;
        let kept = text.lines().filter(|line| {
            if line.starts_with('[') {
                is_kept = !line.contains("dev-dependencies");
            }
            is_kept
        });
        fs::write(&manifest, kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
    // Each crate is checked in its own workspace. In a common workspace, a crate would get a later version if
    // another crate needs this later version, or cargo would find no version at all.
    for package in &packages {
        let member = package.file_name().unwrap();
        let workspace = format!("[workspace]\nresolver = \"2\"\nmembers = [{member:?}]\n");
        fs::write(place.join("Cargo.toml"), workspace + &patch(&packages)).unwrap();
        let mut oldest = cargo_in(&place);
        // This option of cargo is not stable yet; the stable compiler builds the crates.
        oldest.args(["update", "-Z", "direct-minimal-versions"]).env("RUSTC_BOOTSTRAP", "1");
        run(&mut oldest);
        run(cargo_in(&place).args(["check", "--workspace", "--all-features", "--locked"]));
    }
}
