//! The kernel module for a Linux guest, built by this machine's compiler with the headers of the guest's kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::build::{root, succeed, target_folder};
use crate::capability;
use crate::linux::Linux;

/// Name of the capability: a program of the kernel's headers.
const HEADERS: &str = "linux-guest-modpost";

/// The module, without symbols for debuggers.
#[derive(Debug)]
pub struct Module {
    /// `hypertrace.ko`.
    pub file: PathBuf,
    /// `hypertrace_test.ko`, which emits by it.
    pub test: PathBuf,
}

impl Module {
    /// Builds it for the guest's kernel, or reports that the headers are missing.
    #[track_caller]
    pub fn build(linux: &Linux) -> Option<Module> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

        capability::program(HEADERS)?;
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (release, sources) = linux.headers();
        let folder = target_folder().join("linux-module");
        // Copied, as the kernel's makefiles write beside the sources. Unchanged files are not built again.
        copy(&root().join("guest-lib/linux-module"), &folder);
        let headers = sources.join(format!("linux-headers-{release}"));
        let common =
            sources.join(format!("linux-headers-{}", release.replace("cloud-amd64", "common")));
        let mut make = Command::new("make");
        make.args(["--silent", "CC=gcc", "HYPERTRACE_TEST=m", "-C"]).arg(headers);
        // Its own makefile names files below /usr/src.
        make.arg("-f").arg(common.join("Makefile")).arg(format!("M={}", folder.display()));
        // Of the caller, which may be a make or a cargo.
        make.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        succeed(&mut make);
        let stripped = |name: &str| {
            let to = folder.join(format!("{name}.stripped"));
            succeed(Command::new("strip").arg("-d").arg("-o").arg(&to).arg(folder.join(name)));
            to
        };
        Some(Module { file: stripped("hypertrace.ko"), test: stripped("tests/hypertrace_test.ko") })
    }

    /// Reports that a test used it.
    pub fn used(&self) {
        Linux::used();
        capability::used(HEADERS);
    }
}

/// Copies the files of a folder and below that have changed.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else if fs::read(&from).unwrap() != fs::read(&to).unwrap_or_default() {
            fs::copy(&from, &to).unwrap();
        }
    }
}
