//! The kernel's trace, with an instance of its buffers for one test.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::capability;
use crate::namespace::Mount;

/// Prefix of the names of instances. An instance's name ends with the id of the instance's process, and with
/// the serial number of the instance in this process.
const PREFIX: &str = "hypertrace-";

/// Event of the kernel's trace.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Thread of the event.
    pub thread: u32,
    /// Ticks of the TSC.
    pub time: u64,
    /// Event and text: `kvm_mmio: mmio write len 8 gpa 0x...`.
    pub text: String,
}

/// Trace instance, removed when dropped.
#[derive(Debug)]
pub struct Instance {
    dir: PathBuf,
    _mount: Option<Mount>,
}

impl Instance {
    /// Makes an instance that records `event` (such as `kvm/kvm_mmio`, or all of `kvm`) of this thread and of
    /// the threads that this thread will start. The timestamps are values of the TSC. Returns `None`, with a
    /// report, if the kernel refuses.
    pub fn recording(event: &str) -> Option<Instance> {
        let instance = Instance::new()?;
        match instance.start(event) {
            Ok(()) => Some(instance),
            Err(error) => {
                capability::missing("tracefs", format!("cannot record {event}: {error}"));
                None
            }
        }
    }

    /// Makes an instance that records markers only. Returns `None`, with a report, if the kernel refuses.
    pub fn new() -> Option<Instance> {
        let (mount, root) = match mounted() {
            Some(root) => (None, root),
            None => {
                let mount = Mount::new("tracefs", "defaults");
                let Some(root) = mount.as_ref().map(|mount| mount.path().to_owned()) else {
                    capability::missing("tracefs", "not mounted, and cannot be mounted");
                    return None;
                };
                (mount, root)
            }
        };
        let instances = root.join("instances");
        sweep(&instances);
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Relaxed);
        let dir = instances.join(format!("{PREFIX}{}-{serial}", std::process::id()));
        if let Err(error) = fs::create_dir(&dir) {
            capability::missing("tracefs", format!("{}: {error}", dir.display()));
            return None;
        }
        Some(Instance { dir, _mount: mount })
    }

    fn start(&self, event: &str) -> io::Result<()> {
        // .../PROCESS/task/THREAD
        let thread = fs::read_link("/proc/thread-self")?;
        let thread = thread.file_name().unwrap_or_default();
        self.set("trace_clock", b"x86-tsc")?;
        self.set("buffer_size_kb", b"4096")?;
        self.set("options/event-fork", b"1")?;
        self.set("set_event_pid", thread.as_encoded_bytes())?;
        self.set(&format!("events/{event}/enable"), b"1")
    }

    fn set(&self, file: &str, value: &[u8]) -> io::Result<()> {
        fs::write(self.dir.join(file), value)
    }

    /// Returns the instance's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns whether the instance is recording.
    #[track_caller]
    pub fn is_on(&self) -> bool {
        fs::read_to_string(self.dir.join("tracing_on")).unwrap().trim() == "1"
    }

    /// Returns the number of recorded events, including overwritten events.
    #[track_caller]
    pub fn recorded(&self) -> u64 {
        let of_cpu = |dir: fs::DirEntry| {
            let stats = fs::read_to_string(dir.path().join("stats")).unwrap();
            let counts = stats.lines().filter_map(|line| line.split_once(": "));
            let kept =
                counts.filter(|(what, _)| ["entries", "overrun", "read events"].contains(what));
            kept.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum::<u64>()
        };
        fs::read_dir(self.dir.join("per_cpu")).unwrap().map(|dir| of_cpu(dir.unwrap())).sum()
    }

    /// Returns the recorded events in the kernel's order.
    #[track_caller]
    pub fn events(&self) -> Vec<Traced> {
        let text = fs::read_to_string(self.dir.join("trace")).unwrap();
        assert!(!text.contains("LOST"), "the instance's buffer was too small");
        // `   vcpu0-1234    [001] .....  8696302235326: kvm_mmio: mmio write len 8 gpa 0x...`
        let event = |line: &str| {
            let (head, text) = line.split_once(": ")?;
            let time = head.split_whitespace().last()?.parse().ok()?;
            let thread = head.split_once(" [")?.0.trim().rsplit_once('-')?.1.parse().ok()?;
            Some(Traced { thread, time, text: text.to_owned() })
        };
        text.lines().filter(|line| !line.starts_with('#')).filter_map(event).collect()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // If another process holds one of the instance's files open, the instance remains, without events.
        let _ = self.set("tracing_on", b"0");
        let _ = remove(&self.dir);
    }
}

/// Removes an instance. The kernel refuses to remove an instance while one of its files is open. Another
/// process that lists or reads instances may have such a file open, so this function waits up to a second.
pub fn remove(dir: &Path) -> io::Result<()> {
    for _ in 0..50 {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
    fs::remove_dir(dir)
}

/// Removes instances that ended processes have left. A process leaves its instance if one of the instance's
/// files is still open.
fn sweep(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another test may remove the instance at the same time.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the usual place where tracefs is mounted.
fn mounted() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = fields.find(|fields| fields.get(2) == Some(&"tracefs"))?;
    Some(Path::new(found.get(1)?).to_owned())
}
