//! A Linux guest under QEMU, without KVM: a distribution's kernel, busybox, and programs of this tree in an
//! initramfs. The guest ends when its script ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::FULL_SIZE;
use crate::build::{cargo, root, succeed, target_folder};
use crate::capability;
use crate::initramfs::{Initramfs, libraries_of};
use crate::modules::{modules_of, root_of};

/// A machine that QEMU emulates, with the names of the machine's capabilities.
#[derive(Debug)]
struct Machine {
    qemu: &'static str,
    busybox: &'static str,
    options: [&'static str; 4],
    console: &'static str,
}

const X86_64: Machine = Machine {
    qemu: "qemu-backports-system-x86_64",
    busybox: "linux-guest-busybox",
    options: ["-M", "q35", "-cpu", "max"],
    console: "ttyS0",
};
const AARCH64: Machine = Machine {
    qemu: "qemu-backports-system-aarch64",
    busybox: "linux-guest-arm64-busybox",
    options: ["-M", "virt", "-cpu", "cortex-a57"],
    console: "ttyAMA0",
};

/// A machine like [`AARCH64`], with a CPU that begins at EL2, so that the kernel has KVM.
const AARCH64_HOST: Machine = Machine {
    options: ["-M", "virt,virtualization=on,gic-version=3", "-cpu", "cortex-a72"],
    ..AARCH64
};

/// Prefix of the capabilities of the kernel that most tests use. `NAME-kernel` is the kernel, and
/// `NAME-modpost` is a program of the kernel's headers.
const KERNEL: &str = "linux-guest";
/// The same parts of names for later kernels, the newest kernel last.
pub const LATER: [&str; 2] = ["linux-guest-trixie", "linux-guest-backports"];
const KERNEL_AARCH64: &str = "linux-guest-arm64";
const QEMU_AARCH64: &str = "linux-guest-arm64-qemu";
const UDEV: &str = "linux-guest-udevadm";

/// The programs that a guest needs.
#[derive(Debug)]
pub struct Linux {
    /// The emulator.
    pub qemu: PathBuf,
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// First part of the names of the kernel's capabilities.
    pub(crate) name: &'static str,
    machine: &'static Machine,
    busybox: PathBuf,
}

/// Maximum time of a script.
const LIMIT: Duration = Duration::from_secs(60 * if FULL_SIZE { 30 } else { 5 });

/// A guest that has started.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
}

impl Linux {
    /// Finds the programs, or reports which programs are missing.
    pub fn find() -> Option<Linux> {
        Linux::find_kernel(KERNEL)
    }

    /// Finds the programs as [`Linux::find`] does, for AArch64.
    pub fn find_aarch64() -> Option<Linux> {
        Linux::find_machine(&AARCH64, KERNEL_AARCH64)
    }

    /// Finds the programs as [`Linux::find_aarch64`] does, for a machine whose kernel has a real KVM. This
    /// machine is itself the host of guests.
    pub fn find_aarch64_host() -> Option<Linux> {
        Linux::find_machine(&AARCH64_HOST, KERNEL_AARCH64)
    }

    /// Finds the programs as [`Linux::find`] does, with a kernel of [`LATER`].
    pub fn find_kernel(name: &'static str) -> Option<Linux> {
        Linux::find_machine(&X86_64, name)
    }

    fn find_machine(machine: &'static Machine, name: &'static str) -> Option<Linux> {
        let [qemu, busybox] = [machine.qemu, machine.busybox].map(capability::program);
        let kernel = capability::program(&format!("{name}-kernel"));
        Some(Linux { qemu: qemu?, kernel: kernel?, name, machine, busybox: busybox? })
    }

    /// Returns the file of one of the kernel's own modules, such as `drivers/uio/uio`.
    #[track_caller]
    pub fn module(&self, name: &str) -> PathBuf {
        let root = root_of(&self.kernel);
        let mut kernels = fs::read_dir(root.join("lib/modules")).unwrap().flatten();
        let modules = kernels.next().unwrap().path().join("kernel");
        modules.join(name).with_extension("ko")
    }

    /// Returns the files of these modules of the kernel and of all modules that they need, in the order in
    /// which a guest can load them.
    #[track_caller]
    pub fn modules(&self, names: &[&str]) -> Vec<PathBuf> {
        modules_of(&self.kernel, names)
    }

    /// Returns the kernel's release, such as `6.1.0-50-cloud-amd64`, and the folder of its headers.
    #[track_caller]
    pub fn headers(&self) -> (String, PathBuf) {
        let sources = root_of(&self.kernel).join("usr/src");
        let names = fs::read_dir(&sources).unwrap().flatten();
        let mut releases = names.filter_map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            let release = name.strip_prefix("linux-headers-")?;
            release.ends_with("cloud-amd64").then(|| release.to_owned())
        });
        (releases.next().unwrap(), sources)
    }

    /// Returns the files of udev's daemon and of its `udevadm`, with their paths in the guest, or reports
    /// that udev is missing. The daemon is /bin/systemd-udevd.
    #[track_caller]
    pub fn udev() -> Option<Vec<(String, PathBuf)>> {
        let program = fs::canonicalize(capability::program(UDEV)?).unwrap();
        let mut files = fetched_libraries(&program);
        // The two names lead to the same program. The program acts as the daemon or as `udevadm`, according
        // to the name under which the program was started.
        files.extend(["systemd-udevd", "udevadm"].map(|name| (name.into(), program.clone())));
        Some(files)
    }

    /// Reports that a test used udev.
    pub fn used_udev() {
        capability::used(UDEV);
    }

    /// Starts a guest of two CPUs with these devices (options of QEMU; its `-append` replaces the kernel's
    /// command line). The guest's first process runs the script, with these programs in /bin. A name with a
    /// slash is the path of a file in the guest, and the file may be any file.
    #[track_caller]
    pub fn start(
        &self,
        folder: &Path,
        options: &[String],
        programs: &[(&str, &Path)],
        script: &str,
    ) -> Guest {
        let accelerator = ["-accel", "tcg,thread=multi"];
        let options = [&self.machine.options.map(str::to_owned)[..], options].concat();
        let mut qemu = self.command(folder, &accelerator, &options, programs, script);
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Guest { qemu: qemu.spawn().unwrap() }
    }

    /// Returns the command that starts a guest, with all options of the guest's machine. The guest's first
    /// files are in `folder`.
    #[track_caller]
    pub fn command(
        &self,
        folder: &Path,
        accelerator: &[&str],
        options: &[String],
        programs: &[(&str, &Path)],
        script: &str,
    ) -> Command {
        let mut files = Initramfs::default();
        ["bin", "dev", "etc", "proc", "run", "sys", "tmp"]
            .iter()
            .for_each(|name| files.folder(name));
        files.file("bin/busybox", &fs::read(&self.busybox).unwrap());
        for (name, path) in programs {
            let name = if name.contains('/') { (*name).to_owned() } else { format!("bin/{name}") };
            files.file(&name, &fs::read(path).unwrap());
        }
        let init = format!(
            "#!/bin/busybox sh\n\
             /bin/busybox --install -s /bin\n\
             mount -t proc none /proc\nmount -t sysfs none /sys\nmount -t devtmpfs none /dev\n\
             {script}\n\
             poweroff -f\n"
        );
        files.file("init", init.as_bytes());
        let initrd = folder.join("initrd");
        fs::write(&initrd, files.end()).unwrap();
        let mut qemu = Command::new(&self.qemu);
        qemu.args(accelerator)
            .args([
                "-smp",
                "2",
                "-m",
                "512M",
                "-nodefaults",
                "-nographic",
                "-no-reboot",
                "-serial",
                "stdio",
            ])
            .args(["-append", &format!("console={} quiet panic=-1", self.machine.console)])
            .args(["-kernel".as_ref(), self.kernel.as_os_str()])
            .args(["-initrd".as_ref(), initrd.as_os_str()])
            .args(options);
        qemu
    }

    /// Finds a stock QEMU that is compiled for AArch64. This QEMU runs inside a machine of
    /// [`Linux::find_aarch64_host`]. Returns QEMU's files with their paths in this machine; the program is
    /// /bin/qemu. Reports what is missing.
    #[track_caller]
    pub fn qemu_aarch64() -> Option<Vec<(String, PathBuf)>> {
        let [qemu, emulator] = [QEMU_AARCH64, "qemu-aarch64"].map(capability::program);
        let (qemu, emulator) = (fs::canonicalize(qemu?).unwrap(), emulator?);
        let (machine, loader) = ("aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1");
        let mut files = libraries_by(Some(&emulator), &qemu, machine, loader);
        files.push(("/bin/qemu".into(), qemu));
        [QEMU_AARCH64, "qemu-aarch64"].into_iter().for_each(capability::used);
        Some(files)
    }

    /// Reports that a test used the programs of [`Linux::find`].
    pub fn used() {
        Linux::used_with(KERNEL);
    }

    /// Reports that a test used the programs of [`Linux::find_aarch64`].
    pub fn used_aarch64() {
        Linux::used_machine(&AARCH64, KERNEL_AARCH64);
    }

    /// Reports a use as [`Linux::used`] does, for the kernel of this name.
    pub(crate) fn used_with(name: &str) {
        Linux::used_machine(&X86_64, name);
    }

    fn used_machine(machine: &Machine, name: &str) {
        let kernel = format!("{name}-kernel");
        [machine.qemu, &kernel, machine.busybox].into_iter().for_each(capability::used);
    }
}

impl Guest {
    /// Waits for the guest's end. Returns what the guest has written to its console. A guest that hangs is
    /// killed, and fails the test with its console.
    #[track_caller]
    pub fn console(self) -> String {
        let pid = Pid::from_child(&self.qemu);
        let (ended, is_ended) = mpsc::channel::<()>();
        let watch = thread::spawn(move || {
            if is_ended.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let output = self.qemu.wait_with_output();
        drop(ended);
        watch.join().unwrap();
        let ended = output.unwrap();
        let console = String::from_utf8_lossy(&ended.stdout).into_owned();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{}\n{errors}\n{console}", ended.status);
        console
    }

    /// Ends QEMU as a crash would.
    pub fn kill(mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Target of the programs that need no library. cargo gets this target by name, because the flags then apply
/// to the programs alone, and not to build scripts and macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const STATIC: &str = "-C target-feature=+crt-static";

/// Returns the shell command for the build of [`static_program`], in the form that the documents show.
pub fn static_command(package: &str) -> String {
    let arguments = static_arguments(package).join(" ");
    format!("RUSTFLAGS=\"{STATIC}\" cargo {arguments}")
}

fn static_arguments(package: &str) -> [&str; 6] {
    ["build", "--release", "--target", TARGET, "--package", package]
}

/// Builds a package of this tree as a program that needs no library. Returns the program's path, if the
/// program has the package's name.
#[track_caller]
pub fn static_program(package: &str) -> PathBuf {
    let folder = target_folder().join("linux-guest");
    let mut build = cargo();
    build.args(static_arguments(package));
    build.env("RUSTFLAGS", STATIC).env("CARGO_TARGET_DIR", &folder);
    succeed(build.current_dir(root()));
    folder.join(TARGET).join("release").join(package)
}

/// Returns the files of a capability's program and of its libraries, with the files' paths in a guest.
#[track_caller]
pub fn with_libraries(name: &str, program: &Path) -> Vec<(String, PathBuf)> {
    // If `cargo xtask` has fetched the program, `program` is a wrapper, and the folder `root` has the program
    // itself.
    let fetched = program.parent().unwrap().join("../root/usr/bin").join(name);
    let (program, mut files) = match fetched.is_file() {
        true => (fetched.clone(), fetched_libraries(&fetched)),
        false => (program.to_owned(), libraries_of(program).unwrap()),
    };
    files.push((name.to_owned(), program));
    files
}

/// Returns the libraries with which a program was fetched, with their paths in a guest.
#[track_caller]
fn fetched_libraries(program: &Path) -> Vec<(String, PathBuf)> {
    libraries_by(None, program, "x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2")
}

/// Returns libraries as [`fetched_libraries`] does, for a program of this `machine`. The guest has the
/// program's loader at the path `loader`. On this machine, `emulator` starts the loader.
#[track_caller]
fn libraries_by(
    emulator: Option<&Path>,
    program: &Path,
    machine: &str,
    loader: &str,
) -> Vec<(String, PathBuf)> {
    let root = root_of(program);
    let [lib, usr] = ["lib", "usr/lib"].map(|lib| root.join(lib).join(machine));
    let file = lib.join(Path::new(loader).file_name().unwrap());
    let mut list = Command::new(emulator.unwrap_or(&file));
    list.args(emulator.map(|_| &file));
    list.arg("--library-path").arg(format!("{}:{}", lib.display(), usr.display()));
    let listed = list.arg("--list").arg(program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let libraries = listed.lines().filter_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let path = path.split_once(" (")?.0;
        (!name.starts_with('/')).then(|| (format!("lib/{machine}/{name}"), path.into()))
    });
    let mut files: Vec<_> = libraries.collect();
    files.push((loader.into(), file));
    files
}
