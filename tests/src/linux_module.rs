//! The kernel module for a Linux guest, built by this machine's compiler with the headers of the guest's
//! kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::build::{root, succeed, target_folder};
use crate::capability;
use crate::linux::{LATER, Linux};

/// Header that the module includes.
const BARE: &str = "hypertrace-bare.h";

/// The module, without symbols for debuggers.
#[derive(Debug)]
pub struct Module {
    /// `hypertrace.ko`.
    file: PathBuf,
    /// `hypertrace_test.ko`, which emits through the module.
    test: PathBuf,
    /// First part of the names of the kernel's capabilities.
    name: &'static str,
}

impl Module {
    /// Builds the module for the guest's kernel, or reports that the headers are missing.
    #[track_caller]
    pub fn build(linux: &Linux) -> Option<Module> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

        let name = linux.name;
        capability::program(&format!("{name}-modpost"))?;
        // A later kernel has its own compiler, because this machine's compiler may lack some of the options.
        let compiler = match LATER.contains(&name) {
            true => capability::program(&format!("{name}-gcc"))?,
            false => "gcc".into(),
        };
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (release, sources) = linux.headers();
        let folder = target_folder().join("linux-module").join(&release);
        // The sources are copied, because the kernel's makefiles write to the folder of the sources.
        // Unchanged files are not built again.
        copy(&root().join("guest-lib/linux-module"), &folder);
        copy_file(&root().join("guest-lib/include").join(BARE), &folder.join(BARE));
        let headers = sources.join(format!("linux-headers-{release}"));
        let common =
            sources.join(format!("linux-headers-{}", release.replace("cloud-amd64", "common")));
        let mut make = Command::new("make");
        make.arg(format!("CC={}", compiler.display()));
        // The module is built without types for debuggers, because only a program of the headers' release
        // could make them.
        make.args(["--silent", "HYPERTRACE_TEST=m", "CONFIG_DEBUG_INFO_BTF_MODULES="]);
        make.arg("-C").arg(&headers).arg(format!("O={}", headers.display()));
        // The headers' own makefile names files below /usr/src.
        make.arg("-f").arg(common.join("Makefile")).arg(format!("M={}", folder.display()));
        // If make or cargo has started this test, these variables contain options that are not meant for this
        // make.
        make.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        succeed(&mut make);
        let stripped = |name: &str| {
            let to = folder.join(format!("{name}.stripped"));
            succeed(Command::new("strip").arg("-d").arg("-o").arg(&to).arg(folder.join(name)));
            to
        };
        let [file, test] = ["hypertrace.ko", "tests/hypertrace_test.ko"].map(stripped);
        Some(Module { file, test, name })
    }

    /// Returns the module's files, with their paths in a guest.
    pub fn files(&self) -> [(String, PathBuf); 2] {
        let Module { file, test, .. } = self;
        [("/hypertrace.ko", file), ("/hypertrace_test.ko", test)]
            .map(|(name, path)| (name.into(), path.clone()))
    }

    /// Reports that a test used the module, in a guest.
    pub fn used(&self) {
        Linux::used_with(self.name);
        capability::used(&format!("{}-modpost", self.name));
        if LATER.contains(&self.name) {
            capability::used(&format!("{}-gcc", self.name));
        }
    }
}

/// Copies the changed files in and below a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            copy_file(&from, &to);
        }
    }
}

fn copy_file(from: &Path, to: &Path) {
    if fs::read(from).unwrap() != fs::read(to).unwrap_or_default() {
        fs::copy(from, to).unwrap();
    }
}
