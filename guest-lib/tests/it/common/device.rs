//! A device made of plain files, and a thread that does the host's part of LEASE.

use super::{Host, map};
use hypertrace::Options;
use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::config::{ConfigPage, Features, HostInfo};
use hypertrace::abi::layout::{Geometry, Region, host_page, register};
use hypertrace::abi::zerocopy::IntoBytes;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64 as StdAtomicU64, Ordering, Ordering::Relaxed};
use std::time::Duration;

pub const GEOMETRY: Geometry = Geometry {
    clients: 6,
    legacy_args: 4,
    ring_bytes: 1 << 16,
    block_bytes: 1 << 12,
    schema_bytes: 1 << 12,
};
pub const VCPU_CLIENTS: u32 = 2;
/// Address of the device's PCI function.
pub const FUNCTION: &str = "0000:00:04.0";
/// Offset of the window in the file that takes the place of /dev/mem.
pub const WINDOW: u64 = 0x2_0000;

pub fn page() -> ConfigPage {
    let facts = HostInfo::default().with(|info| {
        info.features = Features::TRAPS | Features::KICK;
        info.vcpu_clients = VCPU_CLIENTS;
    });
    ConfigPage::new(&GEOMETRY, &facts)
}

/// Files of a system, under a folder of its own.
pub struct System {
    pub root: tempfile::TempDir,
    pub options: Options,
}

impl System {
    /// Makes a system without a device.
    pub fn new() -> System {
        let root = tempfile::tempdir().unwrap();
        let options = Options::default().with(|options| {
            options.sysfs = root.path().join("sys");
            options.proc = root.path().join("proc");
            options.memory = root.path().join("mem");
        });
        let system = System { root, options };
        system.write("proc/cmdline", "quiet root=/dev/vda\n");
        system.write("proc/cpuinfo", "flags\t\t: fpu tsc constant_tsc nonstop_tsc\n");
        system.function("0000:00:03.0", 0x1000, 0x0001);
        system
    }

    /// Makes a system with a PCI function that has these ids and the BARs of a device.
    pub fn with_function(device: u16, subsystem: u16) -> System {
        let system = System::new();
        system.function(FUNCTION, device, subsystem);
        let bars = [
            ("resource0", Region::Config),
            ("resource1_wc", Region::Data),
            ("resource2", Region::Control),
            ("resource4_wc", Region::Rings),
        ];
        for (name, region) in bars {
            let file = system.create(&format!("{}/{name}", folder(FUNCTION)));
            file.set_len(GEOMETRY.bar_size(region)).unwrap();
            if region == Region::Config {
                file.write_all_at(page().words().as_bytes(), 0).unwrap();
            }
        }
        // The file of each of these BARs has a second name.
        for name in ["resource1", "resource4"] {
            let at = system.file(name);
            fs::hard_link(at.with_file_name(format!("{name}_wc")), at).unwrap();
        }
        system
    }

    /// Makes a system with a window at [`WINDOW`].
    pub fn with_window() -> System {
        let system = System::new();
        let memory = system.create("mem");
        memory.set_len(WINDOW + GEOMETRY.window_size()).unwrap();
        memory.write_all_at(page().words().as_bytes(), WINDOW).unwrap();
        system
    }

    /// Returns the path of a file of the device's function.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(folder(FUNCTION)).join(name)
    }

    pub fn write(&self, path: &str, text: &str) {
        self.create(path).write_all_at(text.as_bytes(), 0).unwrap();
    }

    fn create(&self, path: &str) -> File {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create_new(path).unwrap()
    }

    fn function(&self, address: &str, device: u16, subsystem: u16) {
        let at = folder(address);
        self.write(&format!("{at}/vendor"), "0x1af4\n");
        self.write(&format!("{at}/device"), &format!("{device:#06x}\n"));
        self.write(&format!("{at}/subsystem_device"), &format!("{subsystem:#06x}\n"));
        self.write(&format!("{at}/enable"), "0\n");
        let config = self.create(&format!("{at}/config"));
        config.set_len(256).unwrap();
        // Sets the bit of COMMAND that disables INTx, which the library must leave set.
        config.write_all_at(&[0, 4], 4).unwrap();
    }

    pub fn host(&self) -> FakeHost {
        let bar = |name, region| {
            let file = File::options().read(true).write(true).open(self.file(name));
            map(&file.unwrap(), GEOMETRY.bar_size(region))
        };
        FakeHost::new(bar("resource2", Region::Control), bar("resource4", Region::Rings))
    }

    pub fn host_of_window(&self) -> FakeHost {
        let memory = File::options().read(true).write(true).open(&self.options.memory);
        let words = map(&memory.unwrap(), WINDOW + GEOMETRY.window_size());
        let at = |region| {
            let start = (WINDOW + GEOMETRY.window_offset(region)) as usize / 8;
            &words[start..start + GEOMETRY.bar_size(region) as usize / 8]
        };
        FakeHost::new(at(Region::Control), at(Region::Rings))
    }
}

/// Returns the error of `open` for this system.
pub fn refusal(system: &System) -> String {
    let error = hypertrace::open(&system.options).unwrap_err();
    match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Asserts that the text has all of these parts.
pub fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

fn folder(function: &str) -> String {
    format!("sys/bus/pci/devices/{function}")
}

pub fn is_mapped(path: &Path) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = path.to_str().unwrap();
    maps.lines().any(|line| line.ends_with(path))
}

/// Value that the library never stores to a register.
const MARK: u64 = 0x6d61_726b;

/// A host that takes records. The host shows a new token a little later than the guest stores the token, as
/// over a transport with posted writes.
pub struct FakeHost {
    pub host: Host,
    pub registers: &'static [AtomicU64],
    /// Token that the host shows for every client, while it is not 0.
    pub thief: Arc<StdAtomicU64>,
    stop: Arc<AtomicBool>,
}

impl FakeHost {
    fn new(registers: &'static [AtomicU64], rings: &'static [AtomicU64]) -> FakeHost {
        let host = Host::new(GEOMETRY, VCPU_CLIENTS, rings);
        let thief = Arc::new(StdAtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let pages: Vec<_> = (0..GEOMETRY.clients).map(|c| host.memory(c).host).collect();
        let (stolen, stopped) = (Arc::clone(&thief), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                for (client, page) in (0..).zip(&pages) {
                    let stored = registers[self::register(client, register::LEASE)].load(Relaxed);
                    let shown = match stolen.load(Relaxed) {
                        0 => stored,
                        thief => thief,
                    };
                    page[host_page::LEASE].store(shown, Ordering::Release);
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        FakeHost { host, registers, thief, stop }
    }

    /// Gives a client's register a value.
    pub fn store(&self, client: u32, register: u64, value: u64) {
        self.registers[self::register(client, register)].store(value, Relaxed);
    }

    fn kick(&self) -> &AtomicU64 {
        &self.registers[GEOMETRY.kick_offset() as usize / 8]
    }

    /// Stores a value to KICK that the library never stores.
    pub fn mark(&self) {
        self.kick().store(MARK, Relaxed);
    }

    /// Returns whether the library has stored to KICK since the last `mark`.
    pub fn is_kicked(&self) -> bool {
        self.kick().load(Relaxed) != MARK
    }

    /// Returns the last value stored to a client's register.
    pub fn stored(&self, client: u32, register: u64) -> u64 {
        self.registers[self::register(client, register)].load(Relaxed)
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn register(client: u32, register: u64) -> usize {
    let at = GEOMETRY.control_pages_offset() + u64::from(client) * 4096 + register;
    at as usize / 8
}
