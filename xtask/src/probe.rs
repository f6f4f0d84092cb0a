//! Probes of this machine's capabilities. Each is used, because a device node, a name on PATH or a version proves little.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::fetch::{self, on_path};

/// Usual place of the kernel's trace file system.
const TRACING: &str = "/sys/kernel/tracing";

/// Capability, and the result of its probe.
pub struct Capability {
    /// Name that tests use for it
    pub name: &'static str,
    /// Detail if it was found, else the reason
    pub found: Result<String, String>,
}

/// Results of the probes, and the environment that test commands need to use the capabilities.
pub struct Machine {
    /// Capabilities, in the order of the table
    pub capabilities: Vec<Capability>,
    /// Folders of fetched programs, to be put in front of PATH
    pub path: Vec<PathBuf>,
    /// Words before a test command that give it a mount namespace with tracefs, if the system has not mounted it
    pub prefix: Vec<&'static str>,
}

/// Names of the probes.
pub const NAMES: [&str; 19] = [
    "kvm",
    "tracefs",
    "babeltrace2",
    "python3",
    "readelf",
    "bpftrace",
    "qemu-x86_64",
    "qemu-aarch64",
    "qemu-system-x86_64",
    "aarch64-gcc",
    "aarch64-rust",
    "gcc",
    "g++",
    "clang",
    "clang++",
    "rustfmt",
    "clippy",
    "cargo-deny",
    "cargo-fuzz",
];

impl Machine {
    /// Runs all probes. Fetches programs that can be fetched.
    pub fn probe() -> Self {
        let mut machine =
            Machine { capabilities: Vec::new(), path: Vec::new(), prefix: Vec::new() };
        for name in NAMES {
            let found = match name {
                "kvm" => kvm(),
                "tracefs" => tracefs().map(|(detail, prefix)| {
                    machine.prefix = prefix;
                    detail
                }),
                "babeltrace2" => machine.program(name, reads_a_trace),
                "bpftrace" => match is_root() {
                    true => machine.program(name, attaches),
                    false => Err(anyhow::anyhow!("needs root")),
                },
                "qemu-x86_64" | "qemu-aarch64" | "qemu-system-x86_64" => {
                    machine.program(name, loads_plugins)
                }
                "aarch64-gcc" => machine.program("aarch64-linux-gnu-gcc", links_for_aarch64),
                "aarch64-rust" => machine.program("aarch64-rustc", compiles_for_aarch64),
                "gcc" => found_on_path(name, |program| compiles(program, "c")),
                "g++" => found_on_path(name, |program| compiles(program, "c++")),
                "clang" => machine.program(name, |program| compiles(program, "c")),
                "clang++" => machine.program(name, |program| compiles(program, "c++")),
                "python3" => first_line(Command::new("python3").arg("--version"))
                    .context("not on PATH (package python3)"),
                "readelf" => first_line(Command::new("readelf").arg("--version"))
                    .context("not on PATH (package binutils)"),
                "rustfmt" => first_line(Command::new(cargo()).args(["fmt", "--version"]))
                    .context("not here, `rustup component add rustfmt` gets it"),
                "clippy" => first_line(Command::new(cargo()).args(["clippy", "--version"]))
                    .context("not here, `rustup component add clippy` gets it"),
                "cargo-deny" => first_line(Command::new(cargo()).args(["deny", "--version"]))
                    .context("not here, `cargo install cargo-deny` gets it"),
                _ => cargo_fuzz(),
            };
            let found = found.map_err(|error| format!("{error:#}"));
            machine.capabilities.push(Capability { name, found });
        }
        machine
    }

    /// Finds a program that `works` accepts: on PATH, or fetched.
    fn program(&mut self, name: &str, works: impl Fn(&Path) -> Result<String>) -> Result<String> {
        if let Some(program) = on_path(name) {
            match works(&program) {
                Ok(version) => return Ok(format!("{version}, {}", program.display())),
                Err(error) => println!("{} does not work: {error:#}", program.display()),
            }
        }
        let tool = fetch::find(name).map_err(anyhow::Error::msg)?;
        let folder = fetch::fetched(tool).context("not on PATH, and cannot be fetched")?;
        let program = folder.join(name);
        let version = works(&program).with_context(|| {
            format!("{} does not work (remove it to fetch again)", program.display())
        })?;
        if !self.path.contains(&folder) {
            self.path.push(folder);
        }
        Ok(format!("{version}, {}", program.display()))
    }

    /// Returns the PATH for test commands.
    pub fn search_path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = self.path.iter().cloned().chain(std::env::split_paths(&path));
        // The join fails if a folder's name has a colon: then PATH is unchanged, and tests report what is missing.
        std::env::join_paths(all).unwrap_or(path)
    }

    /// Returns whether the probe of that name succeeded, or its reason.
    pub fn found(&self, name: &str) -> Result<(), &str> {
        let capability = self.capabilities.iter().find(|c| c.name == name);
        match capability.map(|c| &c.found) {
            Some(Ok(_)) => Ok(()),
            Some(Err(why)) => Err(why),
            None => Err("not probed"),
        }
    }
}

/// Returns the cargo that runs this.
pub fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Opens KVM, checks its version and makes a VM: a node may exist without permission or without support for VMs.
fn kvm() -> Result<String> {
    let kvm = kvm_ioctls::Kvm::new().context("cannot open /dev/kvm")?;
    let version = kvm.get_api_version();
    ensure!(version == 12, "KVM_GET_API_VERSION is {version}, not the 12 that is stable");
    kvm.create_vm().context("cannot make a VM")?;
    Ok(format!("API {version}, makes a VM"))
}

/// Finds a mounted tracefs, or tries what root can do without changing the system: a mount in a private namespace.
fn tracefs() -> Result<(String, Vec<&'static str>)> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if let Some(folder) = mounted_tracefs(&mounts) {
        usable_tracefs(folder)?;
        return Ok((format!("mounted at {}", folder.display()), Vec::new()));
    }
    let prefix = vec![
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        "mount -t tracefs nodev /sys/kernel/tracing && exec \"$@\"",
        "sh",
    ];
    let tried = Command::new(prefix[0])
        .args(&prefix[1..])
        .args(["sh", "-c"])
        .arg(format!("ls {TRACING}/events/sched && : >>{TRACING}/tracing_on"))
        .output()
        .context("not mounted, and cannot start unshare(1)")?;
    ensure!(
        tried.status.success(),
        "not mounted, and cannot be in a mount namespace: {}",
        one_line(&tried.stderr)
    );
    let detail = format!("mounted at {TRACING} for the tests alone");
    Ok((detail, prefix))
}

fn mounted_tracefs(mounts: &str) -> Option<&Path> {
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| fields.get(2) == Some(&"tracefs"))
        .find_map(|fields| fields.get(1).copied().map(Path::new))
}

fn usable_tracefs(folder: &Path) -> Result<()> {
    let events = folder.join("events");
    fs::read_dir(&events).with_context(|| format!("cannot read {}", events.display()))?;
    let switch = folder.join("tracing_on");
    fs::OpenOptions::new()
        .write(true)
        .open(&switch)
        .with_context(|| format!("cannot write {}", switch.display()))?;
    Ok(())
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t0\t")))
}

/// Runs the shortest bpftrace script, which fails if a permission or a feature of the kernel is missing.
fn attaches(program: &Path) -> Result<String> {
    let ran = Command::new(program).args(["-e", "interval:ms:1 { exit(); }"]).output()?;
    ensure!(ran.status.success(), "it attaches to nothing: {}", one_line(&ran.stderr));
    first_line(Command::new(program).arg("--version"))
}

/// Reads the smallest trace: no packet headers, one event class, one event. That needs the plugins.
fn reads_a_trace(program: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    fs::write(
        folder.path().join("metadata"),
        "/* CTF 1.8 */\n\
         trace { major = 1; minor = 8; byte_order = le; };\n\
         stream { };\n\
         event { name = \"probe\"; fields := struct { integer { size = 32; align = 8; } value; }; };\n",
    )?;
    fs::write(folder.path().join("stream"), 42_u32.to_le_bytes())?;
    let read = Command::new(program).arg(folder.path()).output()?;
    let text = String::from_utf8_lossy(&read.stdout);
    ensure!(
        read.status.success() && text.trim() == "probe: { value = 42 }",
        "it does not read a trace of one event: {} {}",
        text.trim(),
        one_line(&read.stderr)
    );
    first_line(Command::new(program).arg("--version"))
}

/// Checks that an emulator has the option for plugins, which static programs and builds without plugins lack.
fn loads_plugins(program: &Path) -> Result<String> {
    let help = Command::new(program).arg("-help").output()?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let has_option = help.lines().any(|line| line.starts_with("-plugin"));
    ensure!(has_option, "it loads no plugins (a static build does not)");
    first_line(Command::new(program).arg("--version"))
}

fn found_on_path(name: &str, works: impl Fn(&Path) -> Result<String>) -> Result<String> {
    works(&on_path(name).context("not on PATH")?)
}

/// Compiles a program: headers or a linker may be missing.
fn compiles(program: &Path, language: &str) -> Result<String> {
    let header = if language == "c" { "stdint.h" } else { "type_traits" };
    let folder = tempfile::tempdir()?;
    let (source, made) = (folder.path().join("probe"), folder.path().join("made"));
    fs::write(&source, format!("#include <{header}>\nint main(void) {{ return 0; }}\n"))?;
    let ran =
        Command::new(program).args(["-x", language]).arg(&source).arg("-o").arg(&made).output()?;
    ensure!(ran.status.success(), "it makes no program: {}", one_line(&ran.stderr));
    first_line(Command::new(program).arg("--version"))
}

/// Links the smallest program, static, so that an emulator needs no libraries.
fn links_for_aarch64(program: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let (source, made) = (folder.path().join("probe.c"), folder.path().join("probe"));
    fs::write(&source, "int main(void) { return 0; }\n")?;
    let ran = Command::new(program).arg("-static").arg("-o").args([&made, &source]).output()?;
    ensure!(ran.status.success(), "it links no program: {}", one_line(&ran.stderr));
    first_line(Command::new(program).arg("--version"))
}

/// Compiles the smallest library, which needs the standard library for that machine.
fn compiles_for_aarch64(program: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("probe.rs");
    fs::write(&source, "pub fn probe() -> String { String::new() }\n")?;
    let ran = Command::new(program)
        .args(["--target", "aarch64-unknown-linux-gnu", "--crate-type", "rlib", "--out-dir"])
        .args([folder.path(), &source])
        .output()?;
    ensure!(ran.status.success(), "it compiles no library: {}", one_line(&ran.stderr));
    first_line(Command::new(program).arg("--version"))
}

/// Checks for cargo-fuzz, the nightly toolchain that it needs, and a C++ compiler for libFuzzer.
fn cargo_fuzz() -> Result<String> {
    let version = first_line(Command::new(cargo()).args(["fuzz", "--version"]))
        .context("not here, `cargo install cargo-fuzz` gets it")?;
    let nightly = first_line(Command::new("rustup").args(["run", "nightly", "rustc", "--version"]))
        .context("no nightly toolchain")?;
    first_line(Command::new("c++").arg("--version")).context("no C++ compiler")?;
    Ok(format!("{version}, {nightly}"))
}

/// Returns the first line of a command's output.
fn first_line(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    let first = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    ensure!(output.status.success(), "{}", first(&output.stderr));
    Ok(first(&output.stdout))
}

fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracefs_is_found_by_type_wherever_it_is_mounted() {
        let mounts = "\
sysfs /sys sysfs rw 0 0
debugfs /sys/kernel/debug debugfs rw 0 0
nodev /sys/kernel/debug/tracing tracefs rw 0 0
";
        let expected = Path::new("/sys/kernel/debug/tracing");
        assert_eq!(mounted_tracefs(mounts), Some(expected));
        assert_eq!(mounted_tracefs("tracefs /tracefs ext4 rw 0 0\n"), None);
    }

    #[test]
    fn a_program_that_prints_nothing_is_no_reader() {
        let error = reads_a_trace(Path::new("/bin/true")).unwrap_err();
        assert!(format!("{error}").contains("does not read"), "{error}");
    }
}
