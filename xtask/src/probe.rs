//! Probes of this machine's capabilities. Each is used, because a device node, a name on PATH or a version proves little.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};

use crate::command::{cargo, first_line, nightly, version};
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
#[derive(Default)]
pub struct Machine {
    /// Capabilities, in the order of the table
    pub capabilities: Vec<Capability>,
    /// Folders of fetched programs, to be put in front of PATH
    pub path: Vec<PathBuf>,
    /// Words before a test command that give it a mount namespace with tracefs, if the system has not mounted it
    pub prefix: Vec<&'static str>,
}

/// Function that finds a capability by its name, and returns a detail.
type Probe = fn(&mut Machine, &str) -> Result<String>;

/// Names of the capabilities, and their probes.
const PROBES: [(&str, Probe); 42] = [
    ("kvm", |_, _| kvm()),
    ("tracefs", |machine, _| machine.tracefs()),
    ("babeltrace2", |machine, name| machine.program(name, reads_a_trace)),
    ("trace-cmd", |machine, name| machine.program(name, loads_decoders)),
    ("trace-cmd-3.3", |machine, name| machine.program(name, loads_decoders)),
    ("uftrace-bookworm", |machine, name| machine.program(name, |_| Ok(()))),
    ("uftrace-forky", |machine, name| machine.program(name, |_| Ok(()))),
    ("python3", |_, name| version(name).context("not on PATH (package python3)")),
    ("readelf", |_, name| version(name).context("not on PATH (package binutils)")),
    ("bpftrace", |machine, name| {
        ensure!(is_root(), "needs root");
        machine.program(name, attaches)
    }),
    ("qemu-x86_64", |machine, name| machine.program(name, loads_plugins)),
    ("qemu-aarch64", |machine, name| machine.program(name, loads_plugins)),
    ("qemu-system-x86_64", |machine, name| machine.program(name, loads_plugins)),
    ("qemu-backports-system-x86_64", |machine, name| machine.program(name, loads_plugins)),
    ("qemu-system-aarch64", |machine, name| machine.program(name, loads_plugins)),
    ("qemu-backports-system-aarch64", |machine, name| machine.program(name, loads_plugins)),
    ("qemu-api-5", |_, _| emulator_of(&["10.1", "10.2"])),
    ("qemu-api-6", |_, _| emulator_of(&["11.0"])),
    ("linux-guest-kernel", |machine, name| machine.file(name)),
    ("linux-guest-arm64-kernel", |machine, name| machine.file(name)),
    ("linux-guest-arm64-busybox", |machine, name| machine.file(name)),
    ("linux-guest-busybox", |machine, name| machine.file(name)),
    ("linux-guest-modpost", |machine, name| machine.file(name)),
    ("linux-guest-trixie-kernel", |machine, name| machine.file(name)),
    ("linux-guest-trixie-modpost", |machine, name| machine.file(name)),
    ("linux-guest-trixie-gcc", |machine, name| machine.program(name, |_| Ok(()))),
    ("linux-guest-backports-kernel", |machine, name| machine.file(name)),
    ("linux-guest-backports-modpost", |machine, name| machine.file(name)),
    ("linux-guest-backports-gcc", |machine, name| machine.program(name, |_| Ok(()))),
    ("linux-guest-udevadm", |machine, name| machine.file(name)),
    ("aarch64-gcc", |machine, _| machine.program("aarch64-linux-gnu-gcc", links_for_aarch64)),
    ("aarch64-rust", |machine, _| {
        machine.program("aarch64-rustc", |program| compiles_for(program, "aarch64"))
    }),
    ("riscv64-rust", |machine, _| {
        machine.program("riscv64-rustc", |program| compiles_for(program, "riscv64gc"))
    }),
    ("gcc", |_, name| installed_compiler(name, compiles_c)),
    ("g++", |_, name| installed_compiler(name, compiles_cxx)),
    ("clang", |machine, name| machine.program(name, compiles_c)),
    ("clang++", |machine, name| machine.program(name, compiles_cxx)),
    ("rustfmt", |_, _| subcommand("fmt", "rustup component add rustfmt")),
    ("clippy", |_, _| subcommand("clippy", "rustup component add clippy")),
    ("cargo-deny", |_, _| subcommand("deny", "cargo install cargo-deny")),
    ("cargo-fuzz", |_, _| cargo_fuzz()),
    (MIRI, |_, _| {
        let hint = "not here, `rustup +nightly component add miri rust-src` gets it";
        let version = first_line(nightly().args(["miri", "--version"])).context(hint)?;
        // Without it, cargo miri would install it.
        let sysroot = ["run", "nightly", "rustc", "--print", "sysroot"];
        let sysroot = first_line(Command::new("rustup").args(sysroot)).context(hint)?;
        ensure!(Path::new(&sysroot).join("lib/rustlib/src/rust").exists(), hint);
        Ok(version)
    }),
];

/// The capability that `cargo xtask full` alone uses.
pub const MIRI: &str = "miri";

/// Returns the names of all capabilities that have a probe.
pub fn names() -> impl Iterator<Item = &'static str> {
    PROBES.into_iter().map(|(name, _)| name)
}

impl Machine {
    /// Runs all probes. Fetches programs that can be fetched.
    pub fn probe() -> Self {
        let mut machine =
            Machine { capabilities: Vec::new(), path: Vec::new(), prefix: Vec::new() };
        for (name, probe) in PROBES {
            let found = probe(&mut machine, name).map_err(|error| format!("{error:#}"));
            machine.capabilities.push(Capability { name, found });
        }
        machine
    }

    /// Finds a program that `works` accepts: on PATH, or fetched.
    fn program(&mut self, name: &str, works: fn(&Path) -> Result<()>) -> Result<String> {
        let accepts = |program: &Path| {
            works(program)?;
            Ok::<_, Error>(format!("{}, {}", version(program)?, program.display()))
        };
        if let Some(program) = on_path(name) {
            match accepts(&program) {
                Ok(detail) => return Ok(detail),
                Err(error) => println!("{} does not work: {error:#}", program.display()),
            }
        }
        let tool = fetch::find(name).map_err(Error::msg)?;
        let folder = fetch::fetched(tool).context("not on PATH, and cannot be fetched")?;
        let program = folder.join(name);
        let detail = accepts(&program).with_context(|| {
            format!("{} does not work (remove it to fetch again)", program.display())
        })?;
        if !self.path.contains(&folder) {
            self.path.push(folder);
        }
        Ok(detail)
    }

    /// Finds a file of a guest: on PATH, or fetched.
    fn file(&mut self, name: &str) -> Result<String> {
        if let Some(file) = on_path(name) {
            return Ok(file.display().to_string());
        }
        let tool = fetch::find(name).map_err(Error::msg)?;
        let folder = fetch::fetched(tool).context("not on PATH, and cannot be fetched")?;
        let found = fs::canonicalize(folder.join(name)).context("its link leads nowhere")?;
        if !self.path.contains(&folder) {
            self.path.push(folder);
        }
        Ok(found.display().to_string())
    }

    /// Finds a mounted tracefs, or tries what root can do without changing the system: a mount in a private namespace.
    fn tracefs(&mut self) -> Result<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mount = "mount -t tracefs nodev /sys/kernel/tracing && exec \"$@\"";
        let private = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"];
        let (folder, prefix, whose) = match mounted_tracefs(&mounts) {
            Some(folder) => (folder, &[][..], ""),
            None => (TRACING, &private[..], " for the tests alone"),
        };
        let usable = format!("ls {folder}/events/sched && : >>{folder}/tracing_on");
        let mut words = prefix.iter().copied().chain(["sh", "-c", &usable]);
        let mut command = Command::new(words.next().unwrap_or_default());
        succeeds(command.args(words), &format!("not usable or not mounted at {folder}"))?;
        self.prefix = prefix.to_vec();
        Ok(format!("mounted at {folder}{whose}"))
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
        let capability = self.capabilities.iter().find(|c| c.name == name).ok_or("not probed")?;
        capability.found.as_ref().map(drop).map_err(String::as_str)
    }
}

/// Opens KVM, checks its version and makes a VM: a node may exist without permission or without support for VMs.
fn kvm() -> Result<String> {
    let kvm = kvm_ioctls::Kvm::new().context("cannot open /dev/kvm")?;
    let version = kvm.get_api_version();
    ensure!(version == 12, "KVM_GET_API_VERSION is {version}, not the 12 that is stable");
    kvm.create_vm().context("cannot make a VM")?;
    Ok(format!("API {version}, makes a VM"))
}

fn mounted_tracefs(mounts: &str) -> Option<&str> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut mounted = fields.filter(|fields| fields.get(2) == Some(&"tracefs"));
    mounted.find_map(|fields| fields.get(1).copied())
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t0\t")))
}

/// Runs the shortest bpftrace script, which fails if a permission or a feature of the kernel is missing.
fn attaches(program: &Path) -> Result<()> {
    let script = ["-e", "interval:ms:1 { exit(); }"];
    succeeds(Command::new(program).args(script), "it attaches to nothing")
}

/// Reads the smallest trace: no packet headers, one event class, one event. That needs the plugins.
fn reads_a_trace(program: &Path) -> Result<()> {
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
    Ok(())
}

/// Checks that trace-cmd starts with its libraries and finds its decoders of events, which are plugins.
fn loads_decoders(program: &Path) -> Result<()> {
    let options = Command::new(program).arg("options").output()?;
    let listed = String::from_utf8_lossy(&options.stdout).into_owned();
    ensure!(listed.contains("plugin:"), "it finds no plugins: {}", one_line(&options.stderr));
    Ok(())
}

/// Checks that an emulator has the option for plugins, which static programs and builds without plugins lack.
fn loads_plugins(program: &Path) -> Result<()> {
    let help = Command::new(program).arg("-help").output()?;
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let has_option = help.lines().any(|line| line.starts_with("-plugin"));
    ensure!(has_option, "it loads no plugins (a static build does not)");
    Ok(())
}

/// Finds an emulator of one of these releases on PATH, whose plugin API no fetched one has.
fn emulator_of(releases: &[&str]) -> Result<String> {
    let version = version("qemu-system-x86_64").unwrap_or_default();
    let is = |release: &&str| version.contains(&format!(" version {release}."));
    let wanted = releases.join(" or ");
    ensure!(
        releases.iter().any(is),
        "no qemu-system-x86_64 {wanted} on PATH: the plugin for it is compiled, not run"
    );
    Ok(version)
}

fn installed_compiler(name: &str, works: fn(&Path) -> Result<()>) -> Result<String> {
    let program = on_path(name).context("not on PATH")?;
    works(&program)?;
    version(program)
}

fn compiles_c(program: &Path) -> Result<()> {
    compiles(program, "-x c", "#include <stdint.h>\nint main(void) { return 0; }\n")
}

fn compiles_cxx(program: &Path) -> Result<()> {
    compiles(program, "-x c++", "#include <type_traits>\nint main(void) { return 0; }\n")
}

/// Links the smallest program, static, so that an emulator needs no libraries.
fn links_for_aarch64(program: &Path) -> Result<()> {
    compiles(program, "-static -x c", "int main(void) { return 0; }\n")
}

/// Compiles the smallest library, which needs the standard library for that machine.
fn compiles_for(program: &Path, machine: &str) -> Result<()> {
    let options = format!("--target {machine}-unknown-linux-gnu --crate-type rlib");
    compiles(program, &options, "pub fn probe() -> String { String::new() }\n")
}

/// Compiles a source: headers, libraries or a linker may be missing.
fn compiles(program: &Path, options: &str, source: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (file, made) = (folder.path().join("probe"), folder.path().join("made"));
    fs::write(&file, source)?;
    let mut command = Command::new(program);
    command.args(options.split(' ')).arg(&file).arg("-o").arg(&made);
    succeeds(&mut command, "it compiles nothing")
}

fn succeeds(command: &mut Command, wrong: &str) -> Result<()> {
    let program = command.get_program().display().to_string();
    let ran = command.output().with_context(|| format!("cannot start {program}"))?;
    ensure!(ran.status.success(), "{wrong}: {}", one_line(&ran.stderr));
    Ok(())
}

/// Finds a subcommand of cargo.
fn subcommand(name: &str, install: &str) -> Result<String> {
    let version = first_line(Command::new(cargo()).args([name, "--version"]));
    version.with_context(|| format!("not here, `{install}` gets it"))
}

/// Checks for cargo-fuzz, the nightly toolchain that it needs, and a C++ compiler for libFuzzer.
fn cargo_fuzz() -> Result<String> {
    let fuzz = subcommand("fuzz", "cargo install cargo-fuzz")?;
    let nightly = first_line(nightly().arg("--version")).context("no nightly toolchain")?;
    version("c++").context("no C++ compiler")?;
    Ok(format!("{fuzz}, {nightly}"))
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
        assert_eq!(mounted_tracefs(mounts), Some("/sys/kernel/debug/tracing"));
        assert_eq!(mounted_tracefs("tracefs /tracefs ext4 rw 0 0\n"), None);
    }

    #[test]
    fn a_program_that_prints_nothing_is_no_reader() {
        let error = reads_a_trace(Path::new("/bin/true")).unwrap_err();
        assert!(format!("{error}").contains("does not read"), "{error}");
    }
}
