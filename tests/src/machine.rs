//! A machine with a real KVM, which QEMU emulates. The KVM of the test machine itself may be missing, may not
//! report its entries and exits, or may be unable to run Linux. QEMU's TCG has AMD's extension for virtual
//! machines.
//!
//! The machine sees the files of the test machine at the same paths, read only. So all programs of the tests
//! run there.

#![allow(unsafe_code)] // prctl(2) between fork and exec

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::FULL_SIZE;
use crate::build::target_folder;
use crate::capability;
use crate::initramfs::Initramfs;
use crate::modules::modules_of;

const QEMU: &str = "qemu-backports-system-x86_64";
const KERNEL: &str = "linux-machine-kernel";
const BUSYBOX: &str = "linux-guest-busybox";

/// Modules that the machine loads: for KVM, the file system, the devices that the file system needs, and
/// connections to its guests.
const MODULES: [&str; 5] = ["kvm-amd", "virtio_pci", "9pnet_virtio", "9p", "vhost_vsock"];

/// Maximum time of a script, and of the boot.
const LIMIT: Duration = Duration::from_secs(60 * if FULL_SIZE { 30 } else { 10 });

/// Script of the machine's first process. `/host` becomes the root of all scripts. This root has the files of
/// the test machine, and file systems of the emulated machine at the places to which scripts write. A
/// script's path arrives at the second serial port, and the same port reports the script's end.
const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
while read module; do insmod /modules/$module || echo \"no module $module\"; done </modules/list
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose root /host || poweroff -f
mount -t proc none /host/proc
mount -t sysfs none /host/sys
mount -t devtmpfs none /host/dev
mkdir -p /host/dev/shm
mount -t tracefs none /host/sys/kernel/tracing
mount -t debugfs none /host/sys/kernel/debug
for folder in run mnt dev/shm; do mount -t tmpfs none /host/$folder; done
mkdir /host/mnt/shared
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 shared /host/mnt/shared || poweroff -f
stty -F /dev/ttyS1 raw -echo
exec <>/dev/ttyS1 >&0
echo ready
while read number; do
    mkdir /host/run/$number
    chroot /host /bin/sh -c \"cd /run/$number && exec /bin/sh /mnt/shared/$number/script\" \\
        </dev/null >/host/mnt/shared/$number/stdout 2>/host/mnt/shared/$number/stderr
    echo $?
done
";

/// A machine that has booted.
#[derive(Debug)]
pub struct Machine {
    folder: PathBuf,
    qemu: Pid,
    channel: Mutex<Channel>,
}

#[derive(Debug)]
struct Channel {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    scripts: u32,
}

/// Returns a command as a line for the shell.
pub fn line_of(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let quoted = |word: &OsStr| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''"));
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Result of a script.
#[derive(Debug)]
pub struct Ran {
    /// Exit status of the script.
    pub code: i32,
    /// Output of the script.
    pub stdout: String,
    /// Messages of the script.
    pub stderr: String,
}

impl Machine {
    /// Boots the machine, which all tests of a process share. Returns `None`, with a report, if a program is
    /// missing.
    pub fn find() -> Option<&'static Machine> {
        static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();
        let [qemu, kernel, busybox] = [QEMU, KERNEL, BUSYBOX].map(capability::program);
        let (qemu, kernel, busybox) = (qemu?, kernel?, busybox?);
        MACHINE.get_or_init(|| Some(Machine::boot(&qemu, &kernel, &busybox))).as_ref()
    }

    fn boot(qemu: &Path, kernel: &Path, busybox: &Path) -> Machine {
        let folder = target_folder().join("machine");
        fs::create_dir_all(&folder).unwrap();
        // A machine needs this lock, so only one test process at a time has a machine. The lock ends with the
        // process.
        let lock = File::create(folder.join("lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        std::mem::forget(lock);
        let shared = folder.join("shared");
        let _ = fs::remove_dir_all(&shared);
        fs::create_dir(&shared).unwrap();
        let initrd = folder.join("initrd");
        fs::write(&initrd, initramfs(kernel, busybox)).unwrap();
        let console = folder.join("console");
        let share = |tag: &str, path: &Path, more: &str| {
            let path = path.display();
            [
                "-fsdev".into(),
                format!("local,id={tag},path={path},security_model=none,multidevs=remap{more}"),
                "-device".into(),
                format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
            ]
        };
        let mut command = Command::new(qemu);
        command
            .args(["-M", "q35", "-cpu", "EPYC,+svm,+npt", "-accel", "tcg,thread=multi"])
            .args(["-smp", "2", "-m", "2G", "-nodefaults", "-nographic", "-no-reboot"])
            .args(["-append", "console=ttyS0 quiet panic=-1 tsc=reliable"])
            .args(["-kernel".as_ref(), kernel.as_os_str()])
            .args(["-initrd".as_ref(), initrd.as_os_str()])
            .args(["-serial", &format!("file:{}", console.display()), "-serial", "stdio"])
            .args(share("root", Path::new("/"), ",readonly=on"))
            .args(share("shared", &shared, ""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.join("messages")).unwrap());
        let (qemu, mut channel) = start(command);
        let (said, is_killed) = within_limit(qemu, || channel.line());
        let machine = Machine { folder: shared, qemu, channel: Mutex::new(channel) };
        assert_eq!(said, "ready", "no boot: {}", machine.end(is_killed));
        machine
    }

    /// Runs a script of the shell in the machine as root, in an empty folder and after all other scripts. The
    /// returned folder has the files that the script leaves in `/mnt/shared/NUMBER`, which is `$shared`.
    /// After `$limit` seconds the machine is killed.
    #[track_caller]
    pub fn run(&self, script: &str) -> (Ran, PathBuf) {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let number = channel.scripts;
        channel.scripts += 1;
        let folder = self.folder.join(number.to_string());
        fs::create_dir(&folder).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let script = format!(
            "export HOME=/run TMPDIR=/run PATH='{path}'\nshared=/mnt/shared/{number}; limit={}\n{script}",
            LIMIT.as_secs()
        );
        fs::write(folder.join("script"), script).unwrap();
        let (code, is_killed) = within_limit(self.qemu, || {
            writeln!(channel.to, "{number}").unwrap();
            channel.line()
        });
        let text = |name: &str| fs::read(folder.join(name)).unwrap_or_default();
        let [stdout, stderr] =
            ["stdout", "stderr"].map(|name| String::from_utf8_lossy(&text(name)).into_owned());
        let code = code.parse();
        let code = code.unwrap_or_else(|_| panic!("{}\n{stdout}\n{stderr}", self.end(is_killed)));
        [QEMU, KERNEL, BUSYBOX].into_iter().for_each(capability::used);
        (Ran { code, stdout, stderr }, folder)
    }

    /// Returns a text about the machine's end. The text says whether the limit or QEMU itself ended the
    /// machine, and shows the last output of QEMU and of the machine's kernel.
    fn end(&self, is_killed: bool) -> String {
        let why = match is_killed {
            true => format!("the machine was killed after {LIMIT:?}, which is the limit"),
            false => "the machine has ended by itself".into(),
        };
        let written = ["messages", "console"].map(|name| {
            let text = fs::read(self.folder.with_file_name(name)).unwrap_or_default();
            String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned()
        });
        format!("{why}; QEMU's messages: {}\nconsole: {}", written[0], written[1])
    }
}

impl Channel {
    /// Returns the machine's next line, or an empty line if the machine has ended.
    fn line(&mut self) -> String {
        let mut line = String::new();
        // An error leaves the line empty.
        let _ = self.from.read_line(&mut line);
        line.trim().to_owned()
    }
}

/// Starts the machine, which is killed when this process ends.
fn start(mut command: Command) -> (Pid, Channel) {
    let (send, started) = mpsc::channel();
    // The kernel sends this signal at the end of the thread that has started the machine, so this thread
    // lives as long as the machine.
    thread::spawn(move || {
        // SAFETY: the closure calls prctl(2) only.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut qemu = command.spawn().unwrap();
        let (to, from) = (qemu.stdin.take().unwrap(), qemu.stdout.take().unwrap());
        let channel = Channel { to, from: BufReader::new(from), scripts: 0 };
        send.send((Pid::from_child(&qemu), channel)).unwrap();
        qemu.wait()
    });
    started.recv().unwrap()
}

/// Calls `wait`, and kills the machine if `wait` has not returned within the limit. Returns also whether the
/// machine was killed.
fn within_limit<T>(qemu: Pid, mut wait: impl FnMut() -> T) -> (T, bool) {
    let (ended, is_ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let limit = scope.spawn(move || {
            let is_late = is_ended.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
            if is_late {
                let _ = kill_process(qemu, Signal::KILL);
            }
            is_late
        });
        let done = wait();
        drop(ended);
        (done, limit.join().unwrap())
    })
}

/// Returns the machine's first files, with its modules in the order in which they can be loaded.
fn initramfs(kernel: &Path, busybox: &Path) -> Vec<u8> {
    let mut files = Initramfs::default();
    for name in ["bin", "dev", "host", "modules", "proc", "sys"] {
        files.folder(name);
    }
    files.file("bin/busybox", &fs::read(busybox).unwrap());
    files.file("init", INIT.as_bytes());
    let order = modules_of(kernel, &MODULES);
    for path in &order {
        let name = path.file_name().unwrap().to_str().unwrap();
        files.file(&format!("modules/{name}"), &fs::read(path).unwrap());
    }
    let names = order.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
    let list = names.map(|name| format!("{name}\n")).collect::<String>();
    files.file("modules/list", list.as_bytes());
    files.end()
}
