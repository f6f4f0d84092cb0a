//! The compilers of this machine for C and C++ programs, and the C library for these programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::build::{self, cargo, root, succeed, target_folder};
use crate::capability;

/// Options under which the header and the programs compile without warnings.
pub const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Language that the compiler expects in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Language {
    C11,
    Cxx17,
}

/// Way to link the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// libhypertrace.a, in a program that is otherwise dynamic
    Archive,
    /// No shared library at all
    Static,
    /// libhypertrace.so
    Shared,
}

/// Compilers that this machine may have.
pub const COMPILERS: [(&str, Language); 4] = [
    ("gcc", Language::C11),
    ("g++", Language::Cxx17),
    ("clang", Language::C11),
    ("clang++", Language::Cxx17),
];

/// Compiler, with the C library for its programs.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// Name of the compiler's capability.
    pub name: &'static str,
    program: PathBuf,
    language: Language,
    optimizes: bool,
    options: &'static [&'static str],
    /// Folder of libhypertrace.a and libhypertrace.so.
    library: PathBuf,
}

/// Returns the path of a C program, given its path from the root.
pub fn source(path: &str) -> PathBuf {
    root().join(path)
}

/// Finds the compilers of this machine, and reports the missing ones.
pub fn compilers() -> Vec<Compiler> {
    let here = COMPILERS.iter().filter_map(|&(name, language)| {
        let program = capability::program(name)?;
        Some(Compiler::new(name, program, language, library()))
    });
    here.collect()
}

/// Finds a C compiler, or reports that there is none.
pub fn compiler() -> Option<Compiler> {
    Some(Compiler::new("gcc", capability::program("gcc")?, Language::C11, library()))
}

/// Finds the compiler for aarch64 and builds the library for aarch64, or reports what is missing.
pub fn aarch64() -> Option<Compiler> {
    let program = capability::program_of("aarch64-gcc", "aarch64-linux-gnu-gcc")?;
    let rustc = capability::program_of("aarch64-rust", "aarch64-rustc")?;
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let target = "aarch64-unknown-linux-gnu";
        let (mut cargo, folder) = build::cross(&rustc);
        // The build of a static library needs no linker.
        cargo
            .args(["rustc", "--release", "--package", "hypertrace-c", "--crate-type", "staticlib"])
            .args(["--target", target]);
        succeed(&mut cargo);
        folder.join(target).join("release")
    });
    capability::used("aarch64-rust");
    Some(Compiler::new("aarch64-gcc", program, Language::C11, library))
}

/// Returns the folder of libhypertrace.a and libhypertrace.so for this machine. Builds the libraries if
/// needed.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = target_folder();
        let mut cargo = cargo();
        cargo.args(["build", "--release", "--package", "hypertrace-c"]);
        succeed(cargo.env("CARGO_TARGET_DIR", &folder));
        folder.join("release")
    })
}

impl Compiler {
    fn new(name: &'static str, program: PathBuf, language: Language, library: &Path) -> Compiler {
        let library = library.to_owned();
        Compiler { name, program, language, optimizes: true, options: &[], library }
    }

    /// Returns the same compiler without optimisation.
    pub fn plain(&self) -> Compiler {
        Compiler { optimizes: false, ..self.clone() }
    }

    /// Returns the same compiler with these options.
    pub fn with(&self, options: &'static [&'static str]) -> Compiler {
        Compiler { options, ..self.clone() }
    }

    /// Returns whether the compiler compiles C++.
    pub fn is_cxx(&self) -> bool {
        self.language == Language::Cxx17
    }

    /// Compiles a program, which must not cause a warning.
    #[track_caller]
    pub fn program(&self, source: &Path, linked: Linked, folder: &Path) -> PathBuf {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let made = folder.join(format!("{stem}-{}-{linked:?}", self.name));
        let mut command = self.compile(source);
        command.arg("-o").arg(&made);
        self.link(&mut command, linked);
        succeed(&mut command);
        capability::used(self.name);
        made
    }

    /// Compiles a shared library, which contains the library of this tree or is linked with libhypertrace.so.
    #[track_caller]
    pub fn plugin(&self, source: &Path, linked: Linked, folder: &Path) -> PathBuf {
        let made = folder.join(format!("plugin-{linked:?}.so"));
        let mut command = self.compile(source);
        command.args(["-fPIC", "-shared", "-o"]).arg(&made);
        self.link(&mut command, linked);
        succeed(&mut command);
        made
    }

    /// Compiles a source as firmware is compiled, with no library, no libc, and the general registers only.
    /// Returns the object, which has no undefined symbol.
    #[track_caller]
    pub fn freestanding(&self, source: &Path, folder: &Path) -> PathBuf {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let made = folder.join(format!("{stem}-{}.o", self.name));
        let mut command = self.compile(source);
        command.args(["-ffreestanding", "-mgeneral-regs-only", "-c", "-o"]).arg(&made);
        succeed(&mut command);
        let mut link = Command::new(&self.program);
        link.args(["-nostdlib", "-static", "-Wl,--entry=0", "-o"]).arg(folder.join("alone"));
        succeed(link.arg(&made));
        made
    }

    /// Compiles a source, and links it with an object to a static program. The program does not contain the C
    /// library of this tree.
    #[track_caller]
    pub fn with_object(&self, source: &Path, object: &Path, folder: &Path) -> PathBuf {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let made = folder.join(format!("{stem}-{}", self.name));
        let mut command = self.compile(source);
        succeed(command.arg("-static").arg(object).arg("-o").arg(&made));
        capability::used(self.name);
        made
    }

    /// Asserts that the compiler refuses this source. Returns the compiler's messages.
    #[track_caller]
    pub fn refuses(&self, source: &Path) -> String {
        let (command, Output { status, stderr, .. }) = self.check(source);
        assert!(!status.success(), "{command:?} compiled it");
        String::from_utf8_lossy(&stderr).into_owned()
    }

    /// Asserts that the compiler accepts this source.
    #[track_caller]
    pub fn accepts(&self, source: &Path) {
        let (command, output) = self.check(source);
        assert!(output.status.success(), "{command:?} does not compile it");
    }

    #[track_caller]
    fn check(&self, source: &Path) -> (Command, Output) {
        let mut command = self.compile(source);
        let output = command.arg("-fsyntax-only").output().expect("a compiler that starts");
        (command, output)
    }

    fn compile(&self, source: &Path) -> Command {
        let mut command = Command::new(&self.program);
        match self.language {
            Language::C11 => command.args(["-std=c11", "-x", "c"]),
            Language::Cxx17 => command.args(["-std=c++17", "-x", "c++"]),
        };
        // ISO C does not have POSIX threads.
        let level = if self.optimizes { "-O2" } else { "-O0" };
        command.args(WARNINGS).args(self.options).args([level, "-D_POSIX_C_SOURCE=200809L", "-I"]);
        command.arg(root().join("guest-lib/include"));
        command.arg(source).args(["-x", "none"]);
        command
    }

    fn link(&self, command: &mut Command, linked: Linked) {
        match linked {
            Linked::Archive => {
                command.arg(self.library.join("libhypertrace.a"));
            }
            Linked::Static => {
                command.arg("-static").arg(self.library.join("libhypertrace.a"));
            }
            Linked::Shared => {
                command.arg("-L").arg(&self.library).arg("-lhypertrace");
                command.arg(format!("-Wl,-rpath,{}", self.library.display()));
            }
        }
        command.args(["-lpthread", "-ldl", "-lm"]);
    }
}
