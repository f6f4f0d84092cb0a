//! A small host for the tests, and the guest program. The host makes a segment in a memfd, and reads the
//! segment's relays. The guest is compiled for each architecture for which this machine has a compiler.
//!
//! The code is unsafe because the host maps the segment.
#![allow(unsafe_code, dead_code)]

pub use hypertrace_test_support::capability;
pub mod machine;
pub mod traced;
pub mod uftrace;

use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::config::{ConfigPage, HostInfo, RingMode};
use hypertrace_abi::layout::local::{PAGE_L, STATE, State, TRIGGERS};
use hypertrace_abi::layout::{Geometry, Region};
use hypertrace_abi::record::{Flags, id};
use hypertrace_abi::ring::{ClientMemory, Consumer, ConsumerState, Flow};
use hypertrace_abi::zerocopy::IntoBytes;
use hypertrace_qemu::api::library::TO_6;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::Ordering::Relaxed;

/// A point in a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub relay: u32,
    /// Index in [`Taken::holders`] of the holder that the relay had when the point was recorded.
    pub holder: usize,
    pub client: u64,
    pub vcpu: u64,
    pub seq: u64,
    pub guest_time: u64,
    pub id: u32,
    pub words: Vec<u64>,
    pub time: u64,
}

/// A holder of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub relay: u32,
    pub pid: u64,
    pub tid: u64,
    pub name: String,
}

/// Contents of the relays.
#[derive(Debug, Default)]
pub struct Taken {
    pub points: Vec<Point>,
    pub holders: Vec<Holder>,
}

impl Taken {
    /// Returns the points of one client, in the order of their relays.
    pub fn of(&self, client: u32) -> Vec<&Point> {
        self.points.iter().filter(|point| point.client == u64::from(client)).collect()
    }
}

pub struct Segment {
    pub file: File,
    pub geometry: Geometry,
    pub relays: u32,
    words: &'static [AtomicU64],
}

pub fn geometry() -> Geometry {
    Geometry {
        clients: 16,
        ring_bytes: 1 << 18,
        block_bytes: 1 << 12,
        schema_bytes: 1 << 12,
        ..Geometry::default()
    }
}

impl Segment {
    pub fn new(relays: u32) -> Segment {
        Segment::with(geometry(), relays)
    }

    pub fn with(geometry: Geometry, relays: u32) -> Segment {
        // The descriptor has no CLOEXEC, because the emulator inherits it. SAFETY: the descriptor is new, and
        // the mapping is of the whole file and never unmapped.
        let (file, words) = unsafe {
            let file = File::from_raw_fd(libc::memfd_create(c"segment".as_ptr(), 0));
            let len = geometry.window_size();
            file.set_len(len).unwrap();
            let at = libc::mmap(
                std::ptr::null_mut(),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            (file, std::slice::from_raw_parts(at.cast::<AtomicU64>(), len as usize / 8))
        };
        let facts = HostInfo::default().with(|info| {
            info.vcpu_clients = relays;
            info.epoch = 7;
        });
        file.write_all_at(ConfigPage::new(&geometry, &facts).words().as_bytes(), 0).unwrap();
        let segment = Segment { file, geometry, relays, words };
        segment.set_state(State::Serving);
        segment
    }

    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    pub fn set_state(&self, state: State) {
        self.file.write_all_at(&(state as u32).to_le_bytes(), PAGE_L + STATE).unwrap();
    }

    /// Sets a trigger on a name, so that the plugin leaves points of this name to the host.
    pub fn set_trigger(&self, name_hash: u32) {
        let bit = u64::from(name_hash) % 4096;
        let at = PAGE_L + TRIGGERS + bit / 8;
        self.file.write_all_at(&[1 << (bit % 8)], at).unwrap();
    }

    pub fn memory(&self, client: u32) -> ClientMemory<'static> {
        let start = self.geometry.window_offset(Region::Rings) as usize / 8;
        ClientMemory::of_rings(&self.words[start..], client, &self.geometry, RingMode::Discard)
            .unwrap()
    }

    /// Returns a byte of the config region.
    pub fn byte(&self, offset: u64) -> u8 {
        let word = self.words[offset as usize / 8].load(Relaxed);
        word.to_le_bytes()[offset as usize % 8]
    }

    /// Takes all points out of the relays.
    pub fn take(&self) -> Taken {
        let mut taken = Taken::default();
        for relay in 0..self.relays {
            let mut state = ConsumerState::default();
            let mut consumer = Consumer::new(self.memory(relay), &mut state);
            while {
                let pulled = consumer.pull(&mut [], |_, record| {
                    let mut words = vec![0; record.payload.len()];
                    let header = record.header;
                    record.payload.copy_to(&mut words);
                    if header.id == id::LEASE {
                        let len = words[4] as u32 as usize;
                        let bytes: Vec<u8> =
                            words[4..].iter().flat_map(|word| word.to_le_bytes()).collect();
                        taken.holders.push(Holder {
                            relay,
                            pid: words[1],
                            tid: words[2],
                            name: String::from_utf8(bytes[4..4 + len].to_vec()).unwrap(),
                        });
                        return Flow::Taken;
                    }
                    assert_eq!(header.flags, Flags::REFERENCE_POINT.bits());
                    taken.points.push(Point {
                        relay,
                        holder: taken.holders.len() - 1,
                        client: words[0],
                        vcpu: words[1],
                        seq: words[2],
                        guest_time: words[3],
                        id: header.id,
                        words: words[4..].to_vec(),
                        time: header.timestamp,
                    });
                    Flow::Taken
                });
                pulled.more
            } {}
            assert_eq!(consumer.losses().total(), 0, "relay {relay}");
            assert!(consumer.faults().iter().all(|&n| n == 0), "{:?}", consumer.faults());
            consumer.commit();
        }
        taken
    }
}

/// A program for an emulator.
pub struct Guest {
    pub program: PathBuf,
    /// Emulator of the program's architecture.
    pub qemu: PathBuf,
    pub name: &'static str,
}

/// Ways to compile and run the guest. Each way has a name, an emulator, a compiler, and the compiler's
/// arguments.
const WAYS: [(&str, &str, &str, &[&str]); 4] = [
    ("x86-64 static", "qemu-x86_64", "cc", &["-static"]),
    ("x86-64 PIE", "qemu-x86_64", "cc", &["-fPIE", "-pie"]),
    ("aarch64 static", "qemu-aarch64", "aarch64-linux-gnu-gcc", &["-static"]),
    ("aarch64 static PIE", "qemu-aarch64", "aarch64-linux-gnu-gcc", &["-static-pie", "-fPIE"]),
];

/// Returns the guests that this machine can compile and run. Reports what this machine lacks for each guest
/// that it cannot compile and run.
pub fn guests(folder: &Path) -> Vec<Guest> {
    WAYS.iter()
        .filter_map(|&(name, qemu, compiler, arguments)| {
            let qemu = capability::program(qemu)?;
            let compiler = capability::program(compiler)?;
            let program = folder.join(name.replace(' ', "-"));
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/raw.c");
            let compiled = Command::new(compiler)
                .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
                .arg(&program)
                .args(arguments)
                .arg(source)
                .output()
                .unwrap();
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            Some(Guest { program, qemu, name })
        })
        .collect()
}

/// Returns the path of the plugin for API 1 to 6.
pub fn plugin() -> PathBuf {
    library(TO_6.file)
}

/// Returns the path of a shared object that cargo has built for this test.
pub fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    [deps, deps.parent().unwrap()]
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .expect("cargo builds the plugins for these tests")
}

/// Result of a run.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Guest {
    /// Returns true for a guest of x86-64.
    pub fn is_x86_64(&self) -> bool {
        self.name.starts_with("x86-64")
    }

    /// Returns the emulator's command line up to the program.
    pub fn qemu(&self, options: &[&str]) -> Command {
        let mut command = Command::new(&self.qemu);
        let log = ["-d", "plugin", "-plugin"];
        command.args(options).args(log).arg(plugin()).arg(&self.program);
        command.env_remove("HYPERTRACE_SEGMENT");
        command
    }

    /// Runs an act of the guest, and asserts that the act succeeds. Returns the act's output, and the
    /// plugin's counts.
    #[track_caller]
    pub fn act(&self, segment: &Segment, options: &[&str], act: &[&str]) -> (String, String) {
        let ran: Ran = self
            .qemu(options)
            .args(act)
            .env("HYPERTRACE_SEGMENT", segment.path())
            .output()
            .unwrap()
            .into();
        let name = self.name;
        assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
        assert!(ran.stdout.ends_with("done\n"), "{name}: {ran:?}");
        (ran.stdout, ran.stderr)
    }
}
