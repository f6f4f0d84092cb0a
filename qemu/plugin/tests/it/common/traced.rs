//! A program under QEMU's user mode whose functions are traced.

use super::{Ran, capability, plugin};
use hypertrace_functions::Task;
use hypertrace_functions::read::{By, Summary, Trace};
use hypertrace_functions::symbols::{Source, Symbols};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An architecture of programs.
pub struct Architecture {
    pub qemu: &'static str,
    compiler: &'static str,
    /// Privilege level of programs, and its name.
    pub level: u32,
    level_name: &'static str,
}

pub const X86_64: Architecture =
    Architecture { qemu: "qemu-x86_64", compiler: "cc", level: 3, level_name: "Ring3" };

pub const AARCH64: Architecture = Architecture {
    qemu: "qemu-aarch64",
    compiler: "aarch64-linux-gnu-gcc",
    level: 0,
    level_name: "EL0",
};

/// Emulator and program.
pub struct Guest {
    pub architecture: &'static Architecture,
    pub qemu: PathBuf,
    pub program: PathBuf,
}

impl Guest {
    /// Compiles a program of this folder's sources. Returns `None` if this machine cannot compile or run the
    /// program.
    pub fn new(architecture: &'static Architecture, folder: &Path, source: &str) -> Option<Guest> {
        let Architecture { qemu, compiler, .. } = architecture;
        let (qemu, compiler) = (capability::program(qemu)?, capability::program(compiler)?);
        let program = folder.join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let mut command = Command::new(compiler);
        command
            .args(["-O1", "-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program);
        let compiled: Ran = command.arg(source).output().unwrap().into();
        assert_eq!(compiled.code, Some(0), "{compiled:?}");
        capability::used(architecture.qemu);
        Some(Guest { architecture, qemu, program })
    }

    /// Compiles a source twice: as a library in this folder, and as a dynamic program that calls the library
    /// by stubs.
    pub fn of_library(folder: &Path, source: &str) -> Option<Guest> {
        let names = [X86_64.qemu, X86_64.compiler].map(capability::program);
        let [Some(qemu), Some(compiler)] = names else { return None };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let compile = |options: &[&str], made: &Path| {
            let mut command = Command::new(&compiler);
            command.args(["-O1", "-Wall", "-Wextra", "-Werror"]).arg(&source).args(options);
            let compiled: Ran = command.arg("-o").arg(made).output().unwrap().into();
            assert_eq!(compiled.code, Some(0), "{compiled:?}");
        };
        compile(&["-shared", "-fPIC"], &folder.join("liblibrary.so"));
        let program = folder.join("program");
        let library = format!("-L{}", folder.display());
        compile(&["-DPROGRAM", "-fPIE", "-pie", &library, "-llibrary"], &program);
        capability::used(X86_64.qemu);
        Some(Guest { architecture: &X86_64, qemu, program })
    }

    /// Returns the only track of a trace.
    pub fn task(&self) -> Task {
        Task::of_vcpu(0, self.architecture.level, self.architecture.level_name)
    }

    /// Returns the file of the track's records.
    pub fn records(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.dat", self.task().tid))
    }

    /// Returns a command that traces the program with these options of the plugin.
    pub fn command(&self, options: &str) -> Command {
        let mut command = Command::new(&self.qemu);
        command.arg("-plugin").arg(format!("{},{options}", plugin().display())).arg(&self.program);
        command
    }

    /// Opens a trace, with the program's names.
    pub fn trace(&self, dir: &Path) -> Trace {
        let mut trace = Trace::open(dir).unwrap();
        trace.add_symbols(&Source { path: self.program.clone(), offset: 0 }).unwrap();
        trace
    }

    /// Runs the program with these options. Returns the trace, and the output of the program and of the
    /// plugin.
    #[track_caller]
    pub fn run(&self, dir: &Path, options: &str) -> (Trace, Ran) {
        let options = format!("functions={},{options}", dir.display());
        let ran: Ran = self.command(&options).output().unwrap().into();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains(" 0 misses, 0 records lost"), "{}", ran.stderr);
        (Trace::open(dir).unwrap(), ran)
    }

    /// Returns the address of a function.
    pub fn address(&self, name: &str) -> u64 {
        let symbols = Symbols::read(&Source { path: self.program.clone(), offset: 0 }).unwrap();
        symbols.iter().find(|symbol| symbol.name == name).unwrap().address
    }
}

/// Returns the names of all recorded functions, and the numbers of their calls.
pub fn calls(trace: &Trace) -> Vec<(String, u64)> {
    let summary = Summary::of(trace);
    assert_eq!((summary.damage.len(), summary.orphans, summary.unfinished), (0, 0, 0));
    let name = |address| trace.function(address).unwrap().name.to_owned();
    let functions = summary.top(usize::MAX, By::Calls).into_iter();
    functions.map(|function| (name(function.address), function.calls)).collect()
}

/// Returns the count that the program has printed for a function.
pub fn printed(ran: &Ran, name: &str) -> u64 {
    let count = ran.stdout.lines().find_map(|line| line.strip_prefix(name));
    count.unwrap().trim().parse().unwrap()
}
