//! A Linux guest under QEMU, without KVM: a distribution's kernel, busybox, and programs of this tree in an
//! initramfs. It ends when its script does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::build::{cargo, root, succeed, target_folder};
use crate::capability;

/// Names of the capabilities.
const QEMU: &str = "qemu-backports-system-x86_64";
const KERNEL: &str = "linux-guest-kernel";
const BUSYBOX: &str = "linux-guest-busybox";

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

    /// Starts a guest of two CPUs with these devices (options of QEMU), whose first process runs the script with
    /// these programs in /bin.
    #[track_caller]
    pub fn start(
        &self,
        folder: &Path,
        options: &[String],
        programs: &[(&str, &Path)],
        script: &str,
    ) -> Guest {
        let mut files = Initramfs::new();
        ["bin", "dev", "proc", "sys", "tmp"].iter().for_each(|name| files.folder(name));
        files.file("bin/busybox", &fs::read(&self.busybox).unwrap());
        for (name, path) in programs {
            files.file(&format!("bin/{name}"), &fs::read(path).unwrap());
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

/// Builds a package of this tree as a program that needs no library. Returns its path.
#[track_caller]
pub fn static_program(package: &str) -> PathBuf {
    // A target by name, so that the flags are not those of build scripts and macros.
    let target = "x86_64-unknown-linux-gnu";
    let folder = target_folder().join("linux-guest");
    let mut build = cargo();
    build.args(["build", "--release", "--target", target, "--package", package]);
    build.env("RUSTFLAGS", "-C target-feature=+crt-static").env("CARGO_TARGET_DIR", &folder);
    succeed(build.current_dir(root()));
    folder.join(target).join("release").join(package)
}

/// A cpio archive of the form `newc`, which the kernel unpacks as its first file system.
struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    fn new() -> Initramfs {
        Initramfs { bytes: Vec::new(), entries: 0 }
    }

    fn folder(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
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
