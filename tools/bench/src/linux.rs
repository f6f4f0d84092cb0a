//! Rows in a Linux guest of a stock QEMU, without KVM: this program is the guest's first process.

use super::child::Child;
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use super::timing::{move_to_cpu, on_one_cpu};
use anyhow::{Context as _, Result, bail};
use hypertrace_device::adapter::vfio_user::serve_counted;
use hypertrace_device::{Counter, Geometry, PciFunction};
use hypertrace_test_support::initramfs::{Initramfs, libraries_of};
use hypertrace_user::{Config, Segment, Session};
use hypertrace_vmm::Hypertrace;
use serde_json::json;
use std::env;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

pub const ROWS: &[Row] = &[
    row(
        "linux_ring_emit_sysfs",
        emit_sysfs,
        "`event!` with two `u64` to the device over vfio-user, mapped by sysfs",
    )
    .target("<= 120 ns")
    .note(
        "By the thread's own client, not inlined. In batches of 2,000, each after a wait \
         for room, which is not timed; the row is the time in a batch that is slower than \
         a tenth of them.",
    ),
    row(
        "linux_ring_emit_ivshmem",
        emit_ivshmem,
        "`event!` with two `u64` to a shared file (ivshmem)",
    )
    .target("<= 120 ns"),
    row(
        "linux_ring_emit_module",
        emit_module,
        "`event!` with two `u64` to the device, by the kernel module",
    )
    .target("<= 120 ns")
    .note("By `--linux-module`: `guest-lib/linux-module`, built for the guest's kernel."),
    row(
        "linux_socket_messages",
        messages,
        "messages to the server of vfio-user for a million events (not ns)",
    )
    .over(("leases + kicks", leases_and_kicks), "<= 1 x leases + kicks")
    .note(
        "Events of a new thread. Compared with the thread's one lease and the stores to \
         KICK that the device counts in the same run; a message for each event would be a \
         million.",
    ),
    row(
        "shared_file_point",
        point_asleep,
        "`reference_point!` by a shared file every 5 ms, so that the host sleeps",
    )
    .target("<= 3 ms")
    .note("With two `u64`: the median of 100."),
    row(
        "shared_file_point_idle",
        point_idle,
        "`reference_point!` by a shared file every 300 ms, so that the host rests",
    )
    .target("<= 20 ms")
    .slow(3)
    .note("With two `u64`: the slowest of 10."),
    row("shared_file_point_awake", point_awake, "`shared_file_point` without a pause")
        .target("<= 100 µs")
        .note(
            "The time of one that is slower than a tenth of 500. The guest is moved to \
             another CPU, where there is one: on the guest's CPU the host is never awake \
             while the guest runs.",
        ),
];

/// Number of clients of the device.
const CLIENTS: u32 = 4;
/// Size of the shared file in MiB.
const FILE_MIB: u64 = 16;
/// Name of the module in the guest.
pub const MODULE: &str = "hypertrace.ko";

/// The programs for a guest.
#[derive(Debug, Clone, clap::Args)]
pub struct Linux {
    /// Measure in a Linux guest of QEMU too, with this kernel (vmlinuz)
    #[arg(long, value_name = "KERNEL")]
    linux_guest: Option<PathBuf>,
    /// Measure with this kernel module of hypertrace, too, built for KERNEL
    #[arg(long, value_name = "FILE.ko", requires = "linux_guest")]
    linux_module: Option<PathBuf>,
    /// QEMU for the guest, 10.1 or later
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
}

impl Linux {
    /// Returns QEMU and the kernel.
    ///
    /// # Errors
    /// If no kernel is given.
    pub fn qemu_and_kernel(&self) -> Result<(&Path, &Path)> {
        let kernel = self.linux_guest.as_deref().context("needs --linux-guest KERNEL")?;
        Ok((&self.qemu, kernel))
    }

    /// Starts a guest whose first process answers lines. `device` has QEMU's options for the device, and
    /// `way` says how the library finds the device in the guest.
    fn start(&self, scratch: &Scratch, device: &[String], way: &str) -> Result<Child> {
        let (qemu, kernel) = self.qemu_and_kernel()?;
        let program = env::current_exe()?;
        let mut files = Initramfs::default();
        ["dev", "proc", "sys"].iter().for_each(|name| files.folder(name));
        files.file("bench", &read(&program)?);
        for (name, path) in
            libraries_of(&program).context("cannot find this program's libraries")?
        {
            files.file(&name, &read(&path)?);
        }
        if way == "module" {
            let module = self.linux_module.as_deref().context("needs --linux-module FILE.ko")?;
            files.file(MODULE, &read(module)?);
        }
        let initrd = scratch.path().join("initrd");
        fs::write(&initrd, files.end())?;
        let mut qemu = Command::new(qemu);
        qemu.args(["-M", "q35,memory-backend=ram", "-accel", "tcg", "-cpu", "max", "-m", "512M"])
            .args(["-object", "memory-backend-memfd,id=ram,size=512M,share=on"])
            .args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"])
            // These options make the kernel print no errors, because the benchmark would take an error for an
            // answer. These options also make a panic end QEMU.
            .args([
                "-append",
                "console=ttyS0 loglevel=1 panic=-1 rdinit=/bench \
                    HYPERTRACE_CLOCK=tsc -- --init",
            ])
            .args(["-kernel".as_ref(), kernel.as_os_str(), "-initrd".as_ref(), initrd.as_os_str()])
            .args(device);
        let mut guest = Child::start_vm(&mut qemu)?;
        guest.ask(&format!("linux open {way}"))?;
        Ok(guest)
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Guest with the device over vfio-user, and its server.
struct Socket {
    // The guest is dropped first, because the server ends with the connection.
    guest: Child,
    device: Hypertrace,
    /// Number of messages that the server has received.
    messages: Arc<AtomicU64>,
    /// Number of messages that the last million events caused.
    of_million: u64,
    _scratch: Scratch,
}

impl Socket {
    fn new(linux: &Linux, way: &str) -> Result<Socket> {
        on_one_cpu(|| {
            let scratch = Scratch::new()?;
            let geometry = Geometry { clients: CLIENTS, ..Geometry::default() };
            let device = scratch.server(geometry)?;
            let path = scratch.path().join("socket");
            let listener = UnixListener::bind(&path)?;
            let function = PciFunction::new(Arc::clone(device.chip()));
            let messages = Arc::new(AtomicU64::new(0));
            let count = Arc::clone(&messages);
            // The thread ends when the connection ends. If QEMU never connects, then the thread ends with
            // this process.
            thread::spawn(move || {
                let (client, _) = listener.accept()?;
                serve_counted(&function, &client, &count)
            });
            let option = json!({
                "driver": "vfio-user-pci",
                "x-no-posted-writes": true,
                "socket": {"type": "unix", "path": path},
            });
            let guest = linux.start(&scratch, &["-device".into(), option.to_string()], way)?;
            Ok(Socket { guest, device, messages, of_million: 0, _scratch: scratch })
        })
    }

    /// Returns the number of messages so far, and the number of these messages that are kicks.
    fn counts(&self) -> [u64; 2] {
        [self.messages.load(Relaxed), self.device.chip().count(Counter::KickTrapped)]
    }
}

/// Guest with the kernel module.
struct Module(Socket);

/// Guest with a shared file, and its host.
struct Shared {
    guest: Child,
    _session: Session,
    _scratch: Scratch,
}

impl Shared {
    fn new(linux: &Linux) -> Result<Shared> {
        on_one_cpu(|| {
            let scratch = Scratch::new()?;
            let bytes = FILE_MIB << 20;
            let file = scratch.path().join("memory");
            let path = file.display();
            let memory =
                format!("memory-backend-file,id=ht,share=on,mem-path={path},size={FILE_MIB}M");
            let geometry = Segment::fitting(bytes, CLIENTS).context("a file that is too small")?;
            let session =
                Session::create(Config::new(scratch.path().join("session")).with(|config| {
                    config.geometry = geometry;
                    config.segment = Some(file);
                    config.vm_memory = Some(bytes);
                }))?;
            let device = ["-object", &memory, "-device", "ivshmem-plain,memdev=ht"];
            let guest = linux.start(&scratch, &device.map(str::to_owned), "ivshmem")?;
            Ok(Shared { guest, _session: session, _scratch: scratch })
        })
    }
}

/// Returns the options of the command line.
pub fn options(context: &mut Context) -> Result<Linux> {
    // `bench` has put the options into the context.
    context.resource(|| bail!("no options")).cloned()
}

fn socket(context: &mut Context) -> Result<&mut Socket> {
    let linux = options(context)?;
    context.resource(|| Socket::new(&linux, "sysfs"))
}

fn shared(context: &mut Context) -> Result<&mut Shared> {
    let linux = options(context)?;
    context.resource(|| Shared::new(&linux))
}

/// Measures an event in a guest that maps the device through sysfs.
pub fn emit_sysfs(context: &mut Context) -> Result<f64> {
    socket(context)?.guest.ns("linux emit")
}

/// Measures an event in a guest that maps a shared file through sysfs.
pub fn emit_ivshmem(context: &mut Context) -> Result<f64> {
    shared(context)?.guest.ns("linux emit")
}

/// Measures an event in a guest that has the device from the kernel module.
pub fn emit_module(context: &mut Context) -> Result<f64> {
    let linux = options(context)?;
    let Module(socket) = context.resource(|| Ok(Module(Socket::new(&linux, "module")?)))?;
    socket.guest.ns("linux emit")
}

/// Measures a reference point through a shared file while the file's host is asleep.
pub fn point_asleep(context: &mut Context) -> Result<f64> {
    shared(context)?.guest.ns("linux asleep")
}

/// Measures a reference point through a shared file while the file's host rests.
pub fn point_idle(context: &mut Context) -> Result<f64> {
    shared(context)?.guest.ns("linux idle")
}

/// Measures a reference point through a shared file while the file's host is awake. During the measurement,
/// the guest runs on another CPU than the host. On the same CPU, the host would never be awake while the
/// guest runs.
pub fn point_awake(context: &mut Context) -> Result<f64> {
    let guest = &mut shared(context)?.guest;
    move_to_cpu(1, guest.id())?;
    let measured = guest.ns("linux awake");
    move_to_cpu(0, guest.id())?;
    measured
}

/// Emits a million events on a thread that leases a client. Returns the number of leases and kicks together.
pub fn leases_and_kicks(context: &mut Context) -> Result<f64> {
    let socket = socket(context)?;
    let before = socket.counts();
    socket.guest.ask("linux million")?;
    let after = socket.counts();
    socket.of_million = after[0] - before[0];
    Ok((1 + after[1] - before[1]) as f64)
}

/// Returns the number of messages of the events that [`leases_and_kicks`] has emitted.
pub fn messages(context: &mut Context) -> Result<f64> {
    Ok(socket(context)?.of_million as f64)
}
