//! A Linux guest under QEMU, without KVM: a distribution's kernel, busybox, and programs of this tree in an
//! initramfs. It ends when its script does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::build::{cargo, root, succeed, target_folder};
use crate::capability;

/// Names of the capabilities.
const QEMU: &str = "qemu-backports-system-x86_64";
const KERNEL: &str = "linux-guest-kernel";
const BUSYBOX: &str = "linux-guest-busybox";
const UDEV: &str = "linux-guest-udevadm";

/// The programs that a guest needs.
#[derive(Debug)]
pub struct Linux {
    qemu: PathBuf,
    kernel: PathBuf,
    busybox: PathBuf,
}

/// A guest that has started.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
}

impl Linux {
    /// Finds the programs, or reports which are missing.
    pub fn find() -> Option<Linux> {
        let [qemu, kernel, busybox] = [QEMU, KERNEL, BUSYBOX].map(capability::program);
        Some(Linux { qemu: qemu?, kernel: kernel?, busybox: busybox? })
    }

    /// Returns a file of one of the kernel's own modules, as `drivers/uio/uio`.
    #[track_caller]
    pub fn module(&self, name: &str) -> PathBuf {
        let root = root_of(&self.kernel);
        let mut kernels = fs::read_dir(root.join("lib/modules")).unwrap().flatten();
        let modules = kernels.next().unwrap().path().join("kernel");
        modules.join(name).with_extension("ko")
    }

    /// Returns the kernel's release, as `6.1.0-50-cloud-amd64`, and the folder of its headers.
    #[track_caller]
    pub fn headers(&self) -> (String, PathBuf) {
        let kernel = fs::canonicalize(&self.kernel).unwrap();
        let name = kernel.file_name().unwrap().to_string_lossy();
        let release = name.strip_prefix("vmlinuz-").unwrap().to_owned();
        (release, root_of(&kernel).join("usr/src"))
    }

    /// Returns the files of udev's daemon and of its `udevadm`, with their paths in the guest; or reports that
    /// it is missing. The daemon is /bin/systemd-udevd.
    #[track_caller]
    pub fn udev() -> Option<Vec<(String, PathBuf)>> {
        let program = fs::canonicalize(capability::program(UDEV)?).unwrap();
        let root = root_of(&program);
        let [lib, usr] = ["lib", "usr/lib"].map(|lib| root.join(lib).join("x86_64-linux-gnu"));
        let loader = lib.join("ld-linux-x86-64.so.2");
        let mut list = Command::new(&loader);
        list.arg("--library-path").arg(format!("{}:{}", lib.display(), usr.display()));
        let listed = list.arg("--list").arg(&program).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let libraries = listed.lines().filter_map(|line| {
            let (name, path) = line.trim().split_once(" => ")?;
            let path = path.split_once(" (")?.0;
            (!name.starts_with('/')).then(|| (format!("lib/x86_64-linux-gnu/{name}"), path.into()))
        });
        let mut files: Vec<_> = libraries.collect();
        files.push(("lib64/ld-linux-x86-64.so.2".into(), loader));
        // One program, which does what its name says.
        files.extend(["systemd-udevd", "udevadm"].map(|name| (name.into(), program.clone())));
        Some(files)
    }

    /// Reports that a test used udev.
    pub fn used_udev() {
        capability::used(UDEV);
    }

    /// Starts a guest of two CPUs with these devices (options of QEMU; its `-append` replaces the kernel's command
    /// line), whose first process runs the script with these programs in /bin. A program's name with a slash
    /// is the path of any file.
    #[track_caller]
    pub fn start(
        &self,
        folder: &Path,
        options: &[String],
        programs: &[(&str, &Path)],
        script: &str,
    ) -> Guest {
        let mut files = Initramfs::new();
        ["bin", "dev", "etc", "proc", "run", "sys", "tmp"]
            .iter()
            .for_each(|name| files.folder(name));
        files.file("bin/busybox", &fs::read(&self.busybox).unwrap());
        for (name, path) in programs {
            let name = if name.contains('/') { (*name).to_owned() } else { format!("bin/{name}") };
            files.folders_of(&name);
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
        let qemu = Command::new(&self.qemu)
            .args(["-M", "q35,memory-backend=ram", "-accel", "tcg,thread=multi", "-smp", "2"])
            .args(["-cpu", "max", "-m", "256M", "-nodefaults", "-nographic", "-no-reboot"])
            .args(["-object", "memory-backend-memfd,id=ram,size=256M,share=on"])
            .args(["-serial", "stdio", "-append", "console=ttyS0 quiet panic=-1"])
            .args(["-kernel".as_ref(), self.kernel.as_os_str()])
            .args(["-initrd".as_ref(), initrd.as_os_str()])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Guest { qemu }
    }

    /// Reports that a test used them.
    pub fn used() {
        [QEMU, KERNEL, BUSYBOX].iter().for_each(|name| capability::used(name));
    }
}

impl Guest {
    /// Waits for the guest's end. Returns what it has written to its console.
    #[track_caller]
    pub fn console(self) -> String {
        let ended = self.qemu.wait_with_output().unwrap();
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

/// Target by name of the programs that need no library, so that their flags are not those of build scripts and
/// macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const STATIC: &str = "-C target-feature=+crt-static";

/// Returns the command for a shell by which [`static_program`] builds, as documents give it.
pub fn static_command(package: &str) -> String {
    let arguments = static_arguments(package).join(" ");
    format!("RUSTFLAGS=\"{STATIC}\" cargo {arguments}")
}

fn static_arguments(package: &str) -> [&str; 6] {
    ["build", "--release", "--target", TARGET, "--package", package]
}

/// Builds a package of this tree as a program that needs no library. Returns its path, if its name is the
/// package's.
#[track_caller]
pub fn static_program(package: &str) -> PathBuf {
    let folder = target_folder().join("linux-guest");
    let mut build = cargo();
    build.args(static_arguments(package));
    build.env("RUSTFLAGS", STATIC).env("CARGO_TARGET_DIR", &folder);
    succeed(build.current_dir(root()));
    folder.join(TARGET).join("release").join(package)
}

/// Returns the libraries of a program of this machine, with their paths in a guest.
#[track_caller]
pub fn libraries_of(program: &Path) -> Vec<(String, PathBuf)> {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let text = String::from_utf8(listed.stdout).unwrap();
    // `NAME => PATH (ADDRESS)`, and the loader `PATH (ADDRESS)`.
    let paths =
        text.lines().filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    paths.map(|path| (path.trim_start_matches('/').to_owned(), path.into())).collect()
}

/// Returns the folder in place of / in which a fetched file of a folder of it is.
fn root_of(file: &Path) -> PathBuf {
    let file = fs::canonicalize(file).unwrap();
    file.ancestors().nth(2).unwrap().to_owned()
}

/// A cpio archive of the form `newc`, which the kernel unpacks as its first file system.
struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Initramfs {
    fn new() -> Initramfs {
        Initramfs { bytes: Vec::new(), entries: 0, folders: BTreeSet::new() }
    }

    fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.entry(name, 0o040_755, &[]);
        }
    }

    /// Makes the folders that a file is in.
    fn folders_of(&mut self, name: &str) {
        for (slash, _) in name.match_indices('/') {
            self.folder(&name[..slash]);
        }
    }

    fn file(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, 0o100_755, contents);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let length = contents.len() as u32;
        let name_length = name.len() as u32 + 1;
        // Number, mode, user, group, links, time, length, four numbers of devices, length of the name, sum.
        let numbers = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(contents);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
