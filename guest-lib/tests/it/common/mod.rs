//! Common parts of the tests of the process's channel: a process for each test, the host's side of shared
//! memory, and children.
#![allow(unsafe_code, dead_code)]

pub mod device;

use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::config::{ConfigPage, HostInfo, RingMode};
use hypertrace::abi::layout::{Geometry, host_page};
use hypertrace::abi::record::id;
use hypertrace::abi::ring::{ClientMemory, Consumer, ConsumerState, Flow, Losses, mask_words};
use hypertrace::abi::schema;
use hypertrace::{event, with_client};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering, Ordering::Relaxed};
use std::time::Duration;

/// The event of [`emit`].
pub const TICK: &str = "tick(n:u64)";

/// Emits the event [`TICK`] `times` times.
pub fn emit(times: u64) {
    for n in 0..times {
        event!("tick", n);
    }
}

pub fn client() -> Option<u32> {
    with_client(|client| client.index())
}

/// Runs a test in a process of its own, because a process has one channel.
pub use hypertrace_test_support::child::in_own_process as alone;
pub use hypertrace_test_support::wait_until;

/// Maps a file, until the process ends.
pub fn map(file: &File, len: u64) -> &'static [AtomicU64] {
    // SAFETY: the mapping is new, shared and never unmapped; zeros are valid atomics.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        std::slice::from_raw_parts(at.cast(), len as usize / 8)
    }
}

/// A lease record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    pub client: u32,
    pub token: u64,
    pub pid: u32,
    pub tid: u32,
    pub name: String,
}

/// Leases and events that the host has taken.
#[derive(Default)]
pub struct Seen {
    pub leases: Vec<Leased>,
    /// Number of events, by lease token and id.
    pub events: HashMap<(u64, u32), u64>,
    /// Number of timestamps that went backwards within a lease.
    pub backwards: u64,
    last: HashMap<u64, u64>,
}

impl Seen {
    /// Returns the number of events with this schema, of all holders.
    pub fn count(&self, schema: &str) -> u64 {
        let wanted = schema::id_of(schema);
        self.events.iter().filter(|((_, id), _)| *id == wanted).map(|(_, n)| n).sum()
    }

    /// Returns the number of events with this schema under this lease.
    pub fn count_of(&self, token: u64, schema: &str) -> u64 {
        let key = (token, schema::id_of(schema));
        self.events.get(&key).copied().unwrap_or(0)
    }

    /// Returns the number of events and points, without lease records.
    pub fn total(&self) -> u64 {
        self.events.values().sum()
    }

    pub fn tokens_of(&self, pid: u32) -> Vec<u64> {
        let of_pid = self.leases.iter().filter(|lease| lease.pid == pid);
        of_pid.map(|lease| lease.token).collect()
    }
}

/// The host's side of a channel over shared memory.
pub struct Host {
    pub geometry: Geometry,
    pub page: ConfigPage,
    pub rings: &'static [AtomicU64],
    consumers: Vec<ConsumerState>,
    pub seen: Seen,
}

impl Host {
    pub fn new(geometry: Geometry, vcpu_clients: u32, rings: &'static [AtomicU64]) -> Host {
        let facts = HostInfo::default().with(|info| info.vcpu_clients = vcpu_clients);
        Host {
            geometry,
            page: ConfigPage::new(&geometry, &facts),
            rings,
            consumers: vec![ConsumerState::default(); geometry.clients as usize],
            seen: Seen::default(),
        }
    }

    /// Installs shared memory whose clients from `vcpu_clients` on can be leased. The memory's file is the
    /// lock file, too.
    pub fn install(clients: u32, vcpu_clients: u32, ring_bytes: u64) -> (Host, File) {
        let geometry = Geometry {
            clients,
            legacy_args: 4,
            ring_bytes,
            block_bytes: (ring_bytes / 16).min(4096),
            schema_bytes: 4096,
        };
        let memory = memfd(geometry.rings_size());
        let host = Host::new(geometry, vcpu_clients, map(&memory, geometry.rings_size()));
        let channel = hypertrace::Channel::local(&host.page, host.rings).unwrap();
        // The lock file is opened again, because the locks of another process have an open file description
        // of their own, too.
        let lock = reopen(&memory);
        hypertrace::install(channel, Some(lock)).unwrap();
        (host, memory)
    }

    pub fn memory(&self, client: u32) -> ClientMemory<'static> {
        ClientMemory::of_rings(self.rings, client, &self.geometry, RingMode::Discard).unwrap()
    }

    /// Takes all records that are in the rings.
    pub fn drain(&mut self) {
        for client in 0..self.geometry.clients {
            let memory = self.memory(client);
            let mut consumer = Consumer::new(memory, &mut self.consumers[client as usize]);
            while consumer.next_schema().is_some() {}
            consumer.commit_schemas();
            loop {
                let mut events = HashMap::<u32, u64>::new();
                let mut times = Vec::new();
                let mut leases = Vec::new();
                let pulled = consumer.pull(&mut [], |_, record| {
                    times.push(record.header.timestamp);
                    if record.header.id == id::LEASE {
                        let mut words = vec![0; record.payload.len()];
                        record.payload.copy_to(&mut words);
                        leases.push(words);
                    } else {
                        *events.entry(record.header.id).or_default() += 1;
                    }
                    Flow::Taken
                });
                consumer.commit();
                for words in leases {
                    assert_eq!(words[0], pulled.token, "a lease in another's block");
                    self.seen.leases.push(lease(client, &words));
                }
                let last = self.seen.last.entry(pulled.token).or_default();
                for time in times {
                    self.seen.backwards += u64::from(time < *last);
                    *last = time;
                }
                for (id, n) in events {
                    *self.seen.events.entry((pulled.token, id)).or_default() += n;
                }
                if !pulled.more {
                    break;
                }
            }
        }
    }

    /// Runs `body` while another thread drains at the cadence of a real host.
    pub fn while_draining<R>(&mut self, body: impl FnOnce() -> R) -> R {
        let stop = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    self.drain();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            stop.store(true, Relaxed);
            result
        });
        self.drain();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Returns the totals of lost events of all clients.
    pub fn losses(&mut self) -> Losses {
        let mut sum = Losses::default();
        for client in 0..self.geometry.clients {
            let memory = self.memory(client);
            let mut consumer = Consumer::new(memory, &mut self.consumers[client as usize]);
            let losses = consumer.losses();
            sum.full += losses.full;
            sum.busy += losses.busy;
            sum.unattached += losses.unattached;
            sum.overwritten += losses.overwritten;
        }
        sum
    }

    /// Returns the counts of all faults of all clients.
    pub fn faults(&mut self) -> Vec<(&'static str, u64)> {
        use hypertrace::abi::ring::Fault;
        let mut faults = Vec::new();
        for client in 0..self.geometry.clients {
            let memory = self.memory(client);
            let counts = Consumer::new(memory, &mut self.consumers[client as usize]).faults();
            let named = Fault::ALL.iter().zip(counts);
            faults.extend(named.filter(|(_, n)| *n > 0).map(|(f, n)| (f.name(), n)));
        }
        faults
    }

    /// Switches the event with this name off or on.
    pub fn set_mask(&self, name: &str, off: bool, version: u64) {
        let slot = schema::mask_slot(name);
        let word = &mask_words(self.rings).unwrap()[slot / 8];
        let mut bytes = word.load(Relaxed).to_le_bytes();
        bytes[slot % 8] = off.into();
        word.store(u64::from_le_bytes(bytes), Relaxed);
        for client in 0..self.geometry.clients {
            self.memory(client).host[host_page::MASK_VERSION].store(version, Ordering::Release);
        }
    }
}

fn lease(client: u32, words: &[u64]) -> Leased {
    let bytes: Vec<u8> = words[4..].iter().flat_map(|w| w.to_le_bytes()).collect();
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    Leased {
        client,
        token: words[0],
        pid: words[1] as u32,
        tid: words[2] as u32,
        name: String::from_utf8(bytes[4..4 + len].to_vec()).unwrap(),
    }
}

pub fn memfd(len: u64) -> File {
    // SAFETY: the descriptor is new, and the file owns it.
    let file =
        unsafe { File::from_raw_fd(libc::memfd_create(c"rings".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(len).unwrap();
    file
}

/// Opens the same file with a description of its own.
pub fn reopen(file: &File) -> File {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(true).open(path).unwrap()
}

/// Returns whether the client's byte is locked by an open file description other than that of `file`.
pub fn is_locked(file: &File, client: u32) -> bool {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: client.into(),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: fcntl reads and writes `lock`.
    let got = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    assert_eq!(got, 0);
    lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Forks. The child runs `body`, and ends with the value of `body` as the exit code.
pub fn fork(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child only runs `body`, and never returns to the harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        child(body);
    }
    Child(pid)
}

/// Forks as [`fork`] does, but without fork handlers, as in a program that calls clone(2).
#[cfg(target_arch = "x86_64")]
pub fn raw_fork(body: impl FnOnce() -> i32) -> Child {
    // SAFETY: as in `fork`.
    let pid = unsafe { libc::syscall(libc::SYS_fork) } as i32;
    assert!(pid >= 0);
    if pid == 0 {
        child(body);
    }
    Child(pid)
}

fn child(body: impl FnOnce() -> i32) -> ! {
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
    // SAFETY: _exit ends the process.
    unsafe { libc::_exit(code) }
}

/// A forked child.
pub struct Child(pub i32);

impl Child {
    /// Waits for the child's end. Returns the child's exit code.
    pub fn wait(self) -> i32 {
        let mut status = 0;
        // SAFETY: waitpid writes to `status`.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        assert!(libc::WIFEXITED(status), "status {status:#x}");
        libc::WEXITSTATUS(status)
    }

    pub fn kill(self) {
        // SAFETY: the process is our own child, not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Makes a word that a parent and its children share.
pub fn shared_word() -> &'static AtomicU64 {
    &map(&memfd(4096), 4096)[0]
}
