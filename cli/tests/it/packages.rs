//! Tests of the packages for users: a test installs the packages over an older version in an otherwise empty
//! root, uses the programs, and removes the packages.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use hypertrace_test_support::capability;
use hypertrace_tests::build::{self, root, succeed, target_folder};
use hypertrace_tests::command::{Hypertrace, copy_program, plugin, run};
use hypertrace_tests::linux::static_program;
use hypertrace_tests::namespace;
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Returns the packages that `cargo xtask full` has built for users, or else packages of the tests' programs.
/// Returns `None` without dpkg, because dpkg makes the packages.
fn packages(folder: &TempDir) -> Option<PathBuf> {
    if let Some(made) = std::env::var_os("HYPERTRACE_TEST_PACKAGES") {
        return Some(root().join(made));
    }
    capability::program("dpkg")?;
    let library = target_folder().join("release");
    succeed(build::cargo().args(["build", "--release", "--package", "hypertrace-c"]));
    let built = folder.path().join("built");
    fs::create_dir(&built).unwrap();
    for file in [
        static_program("hypertrace-cli").with_file_name("hypertrace"),
        static_program("hypertrace-mark"),
        plugin(),
        plugin().with_file_name("libhypertrace_qemu_plugin_7.so"),
        library.join("libhypertrace.so"),
        library.join("libhypertrace.a"),
    ] {
        fs::copy(&file, built.join(file.file_name().unwrap())).unwrap();
    }
    let made = folder.path().join("packages");
    let mut package = build::cargo();
    package.args(["xtask", "package", "--output"]).arg(&made).arg("--built").arg(built);
    match capability::program("python3-setuptools") {
        Some(python) => {
            // The script starts `python3` by that name, and needs nothing from the network.
            let (programs, path) = (folder.path().join("programs"), std::env::var("PATH").unwrap());
            fs::create_dir(&programs).unwrap();
            let text = format!("#!/bin/sh\nPATH='{path}' exec '{}' \"$@\"\n", python.display());
            fs::write(programs.join("python3"), text).unwrap();
            let executable = fs::Permissions::from_mode(0o755);
            fs::set_permissions(programs.join("python3"), executable).unwrap();
            package.env("PATH", format!("{}:{path}", programs.display()));
            package.env("PIP_NO_BUILD_ISOLATION", "0");
        }
        None => drop(package.arg("--no-wheel")),
    }
    succeed(package.env("CARGO_TARGET_DIR", target_folder()));
    Some(made)
}

/// Returns a command of a program that runs as root, or in a user namespace as root.
fn as_root(program: &Path) -> Command {
    if rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(program);
    command
}

/// Returns the files below a folder, with their contents.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn add(folder: &Path, below: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(folder.join(below)).into_iter().flatten() {
            let name = below.join(entry.unwrap().file_name());
            match folder.join(&name).is_dir() {
                true => add(folder, &name, found),
                false => drop(found.insert(name.clone(), fs::read(folder.join(name)).unwrap())),
            }
        }
    }
    let mut found = BTreeMap::new();
    add(folder, Path::new(""), &mut found);
    found
}

#[test]
fn packages_are_installed_over_older_ones_used_and_removed() {
    let Some(dpkg) = capability::program("dpkg") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(made) = packages(&folder) else { return };
    let system = folder.path().join("root");
    for below in ["info", "updates", "triggers"] {
        fs::create_dir_all(system.join("var/lib/dpkg").join(below)).unwrap();
    }
    for file in ["status", "available"] {
        fs::write(system.join("var/lib/dpkg").join(file), "").unwrap();
    }
    let dpkg = |arguments: &[&str]| {
        let mut command = as_root(&dpkg);
        // dpkg starts programs of the administrator by name.
        command.env("PATH", capability::search_path());
        command.arg(format!("--root={}", system.display()));
        command.args(["--force-not-root", "--force-script-chrootless", "--log=/dev/null"]);
        succeed(command.args(arguments));
    };
    let names = ["hypertrace", "libhypertrace-dev", "hypertrace-guest"];
    let version = env!("CARGO_PKG_VERSION");
    let file = |name: &str| made.join(format!("{name}_{version}_amd64.deb"));

    // An older version, with a file that this version no longer has.
    for name in names {
        let older = folder.path().join("older");
        succeed(as_root("dpkg-deb".as_ref()).arg("-R").arg(file(name)).arg(&older));
        fs::write(older.join("usr").join(format!("{name}.old")), "").unwrap();
        let control = older.join("DEBIAN/control");
        let text = fs::read_to_string(&control).unwrap();
        fs::write(&control, text.replace(version, "0.0.9")).unwrap();
        let package = folder.path().join("older.deb");
        succeed(as_root("dpkg-deb".as_ref()).arg("-b").arg(&older).arg(&package));
        dpkg(&["-i", package.to_str().unwrap()]);
        assert!(system.join("usr").join(format!("{name}.old")).exists());
        fs::remove_dir_all(older).unwrap();
    }
    names.iter().for_each(|name| dpkg(&["-i", file(name).to_str().unwrap()]));
    let usr = system.join("usr");
    let old: Vec<_> = files(&usr).into_keys().filter(|file| file.ends_with(".old")).collect();
    assert_eq!(old, [""; 0].map(PathBuf::from), "files of the version before");

    // The installed command records an event and reads it.
    let session = folder.path().join("session");
    let mut record = Command::new(usr.join("bin/hypertrace"));
    record.args(["record", "--quiet", "-o"]).arg(&session);
    run(record.arg(usr.join("bin/hypertrace-mark")).args(["packaged", "n=7"])).ok();
    let report = run(Command::new(usr.join("bin/hypertrace")).arg("report").arg(&session)).ok();
    assert!(report.contains(" packaged ") && report.contains(" n=7 "), "{report}");
    // The plugins are where the command looks for them.
    for plugin in ["libhypertrace_qemu_plugin.so", "libhypertrace_qemu_plugin_7.so"] {
        assert!(usr.join("bin/../lib/hypertrace").join(plugin).is_file(), "{plugin}");
    }
    let man = fs::read_to_string(usr.join("share/man/man1/hypertrace-record.1")).unwrap();
    assert!(man.contains(".SH OPTIONS") && man.contains("kernel"), "{man}");
    let completions = "share/bash-completion/completions/hypertrace";
    assert!(fs::read_to_string(usr.join(completions)).unwrap().contains("--own-only"));
    // DKMS builds the same sources as the tests of the module.
    let mut sources = files(&usr.join(format!("src/hypertrace-{version}")));
    let dkms = sources.remove(Path::new("dkms.conf")).unwrap();
    let dkms = String::from_utf8(dkms).unwrap();
    assert!(dkms.contains(&format!("PACKAGE_VERSION=\"{version}\"")), "{dkms}");
    let mut module = files(&root().join("guest-lib/linux-module"));
    let bare = "hypertrace-bare.h";
    module.insert(bare.into(), fs::read(root().join("guest-lib/include").join(bare)).unwrap());
    assert_eq!(sources, module);

    dpkg(&[&["--purge"], &names[..]].concat());
    assert_eq!(files(&usr), BTreeMap::new());
    capability::used("dpkg");
}

/// Unpacks an archive into a folder. Returns the name of the folder that the archive makes there.
fn unpack(made: &Path, name: &str, machine: &str, to: &Path) -> String {
    let whole = format!("{name}-{}-{machine}", env!("CARGO_PKG_VERSION"));
    let archive = made.join(format!("{whole}.tar.gz"));
    succeed(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(to));
    whole
}

#[test]
fn archives_run_in_a_root_that_has_busybox_alone() {
    let programs = ["linux-guest-busybox", "chroot"].map(capability::program);
    let [Some(busybox), Some(chroot)] = programs else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(made) = packages(&folder) else { return };
    let system = folder.path().join("root");
    for below in ["bin", "proc", "tmp"] {
        fs::create_dir_all(system.join(below)).unwrap();
    }
    copy_program(busybox, system.join("bin/busybox"));
    let [command, guest] = ["hypertrace", "hypertrace-guest"]
        .map(|name| unpack(&made, name, "x86_64", &system) + "/bin");
    let script = format!(
        "set -e; cd /tmp; PATH=/{command}:/{guest}
        hypertrace --version
        hypertrace record --quiet hypertrace-mark boxed n=9
        hypertrace report"
    );
    let mut chroot = Command::new(chroot);
    chroot.arg(&system).args(["/bin/busybox", "sh", "-c", &script]);
    let mounts = format!("mount --rbind /proc {}/proc", system.display());
    let Some(mut boxed) = namespace::inside(&mounts, &chroot) else { return };

    let shown = run(&mut boxed).ok();

    assert!(shown.starts_with(concat!("hypertrace ", env!("CARGO_PKG_VERSION"))), "{shown}");
    assert!(shown.contains(" boxed ") && shown.contains(" n=9 "), "{shown}");
    capability::used("linux-guest-busybox");
}

#[test]
fn archives_run_from_where_they_are_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let Some(made) = packages(&folder) else { return };
    let [hypertrace, mark] =
        [("hypertrace", "hypertrace"), ("hypertrace-guest", "hypertrace-mark")].map(
            |(name, program)| {
                folder
                    .path()
                    .join(unpack(&made, name, "x86_64", folder.path()))
                    .join("bin")
                    .join(program)
            },
        );
    let version = run(Command::new(&hypertrace).arg("--version")).ok();
    assert!(version.starts_with(concat!("hypertrace ", env!("CARGO_PKG_VERSION"))), "{version}");
    let session = folder.path().join("session");
    let mut record = Command::new(hypertrace);
    record.args(["record", "--quiet", "-o"]).arg(&session).arg(mark);
    run(record.args(["unpacked", "n=8"])).ok();
    assert!(HYPERTRACE.report(&session).iter().any(|line| line.event == "unpacked"));
}

#[test]
fn a_python_program_with_the_wheel_alone_is_recorded() {
    let tools = ["python3", "python3-setuptools"].map(capability::program);
    let [Some(python), Some(_)] = tools else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(made) = packages(&folder) else { return };
    let wheel = format!("hypertrace-{}-py3-none-linux_x86_64.whl", env!("CARGO_PKG_VERSION"));
    let installed = folder.path().join("installed");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--root-user-action", "ignore"]);
    succeed(pip.arg("--target").arg(&installed).arg(made.join(wheel)));
    let session = folder.path().join("session");
    let mut record = HYPERTRACE.command(["record", "--quiet", "-o"]);
    record.arg(&session).arg(python);
    record.args(["-c", "import hypertrace\nwith hypertrace.region('wheeled', n=7): pass"]);

    run(record.env("PYTHONPATH", &installed)).ok();

    assert_eq!(HYPERTRACE.regions(&session, &[]), [("wheeled".to_owned(), 1)]);
    let licences = files(&installed).into_keys().filter(|file| file.ends_with("METADATA"));
    let metadata = fs::read_to_string(installed.join(Vec::from_iter(licences)[0].clone())).unwrap();
    assert!(metadata.contains("License-Expression: Apache-2.0 OR BSD-3-Clause"), "{metadata}");
    capability::used("python3-setuptools");
}

#[test]
#[ignore = "needs the archive for AArch64: cargo xtask full"]
fn the_archive_for_aarch64_records_under_qemu_aarch64() {
    let Some(emulator) = capability::program("qemu-aarch64") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(made) = packages(&folder) else { return };
    let unpacked = unpack(&made, "hypertrace-guest", "aarch64", folder.path());
    let session = folder.path().join("session");
    let mut record = HYPERTRACE.command(["record", "--quiet", "-o"]);
    record.arg(&session).arg(emulator);
    record.arg(folder.path().join(unpacked).join("bin/hypertrace-mark"));

    run(record.args(["--require", "emulated", "n=6"])).ok();

    assert!(HYPERTRACE.report(&session).iter().any(|line| line.event == "emulated"));
    capability::used("qemu-aarch64");
}
