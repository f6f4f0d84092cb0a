//! The segment's file: opened for the locks, mapped for all else.
//!
//! Unsafe, because of mmap(2), fcntl(2) and futex(2).
#![allow(unsafe_code)]

use hypertrace_abi::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
use hypertrace_abi::config::{ConfigError, ConfigPage, Features, RingMode};
use hypertrace_abi::layout::local::{
    BELLS, PAGE_L, STATE, State, TRIGGERS, TRIGGERS_BYTES, WATCH, watch,
};
use hypertrace_abi::layout::{Geometry, MIN_BAR, PAGE, Region, WORD};
use hypertrace_abi::ring::{ClientMemory, Wake};
use hypertrace_abi::zerocopy::FromBytes;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8};

/// Programs that are emulated have QEMU's descriptors, and many expect theirs
/// to begin at 3: ours goes out of their way, below the usual limit of 1,024.
const DESCRIPTOR: libc::c_int = 960;

/// Why a segment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The system does not let us.
    #[error("cannot {doing} the segment {}: {source}", path.display())]
    System { doing: &'static str, path: PathBuf, source: io::Error },
    /// It is none.
    #[error("{} is no segment: {why}", path.display())]
    NoSegment { path: PathBuf, why: String },
    /// It is none that we know.
    #[error("{} is no segment for this plugin: {why}", path.display())]
    Config { path: PathBuf, why: ConfigError },
}

/// A segment, mapped for ever.
pub struct Segment {
    words: &'static [AtomicU64],
    /// Page L.
    local: &'static [AtomicU64; (PAGE / WORD) as usize],
    clients: Box<[ClientMemory<'static>]>,
    geometry: Geometry,
    /// The clock epoch, as the config page said.
    pub epoch: u64,
    /// Clients below it are relays.
    pub relays: u32,
    /// Offset of the first client's registers.
    registers: u64,
    descriptor: AtomicI32,
    bells: OnceLock<Box<[Bell]>>,
}

/// Rings the host when a relay's ring fills.
pub struct Bell {
    segment: &'static Segment,
    client: u32,
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bell({})", self.client)
    }
}

impl Wake for Bell {
    fn wake(&self) {
        self.segment.ring(self.client);
    }
}

impl Segment {
    /// Opens and maps it.
    pub fn open(path: &Path) -> Result<Segment, SegmentError> {
        let failed =
            |doing| move |source| SegmentError::System { doing, path: path.to_owned(), source };
        let none = |why: String| SegmentError::NoSegment { path: path.to_owned(), why };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOCTTY)
            .open(path)
            .map_err(failed("open"))?;
        let has = file.metadata().map_err(failed("look at"))?.len();
        let mut page = [0; size_of::<ConfigPage>()];
        if has < MIN_BAR {
            return Err(none(format!("it has {has} bytes and no room for a config page")));
        }
        file.read_exact_at(&mut page, 0).map_err(failed("read"))?;
        let page = ConfigPage::read_from_bytes(&page)
            .map_err(|_| none("it has no room for a config page".into()))?;
        let config = |why| SegmentError::Config { path: path.to_owned(), why };
        let geometry = page.geometry().map_err(config)?;
        let mode = page.ring_mode().map_err(config)?;
        if page.features().contains(Features::TRAPS) {
            return Err(none("it is a device's: its config page says TRAPS".into()));
        }
        let rings_at = geometry.window_offset(Region::Rings);
        let end = rings_at + geometry.rings_size();
        if has < end {
            return Err(none(format!("it has {has} bytes, and its config page says {end}")));
        }
        let words = map(&file, end).map_err(failed("map"))?;
        let local = words[(PAGE_L / WORD) as usize..]
            .first_chunk()
            .ok_or_else(|| none("it has no room for its host's page".into()))?;
        Ok(Segment {
            words,
            local,
            clients: clients(&words[(rings_at / WORD) as usize..], &geometry, mode),
            geometry,
            epoch: page.epoch,
            relays: u32::try_from(page.vcpu_clients)
                .map_or(geometry.clients, |relays| relays.min(geometry.clients)),
            registers: geometry.window_offset(Region::Control) + geometry.control_pages_offset(),
            descriptor: AtomicI32::new(out_of_the_way(file).into_raw_fd()),
            bells: OnceLock::new(),
        })
    }

    /// An address in our mapping, to find the file by in `/proc/self/maps`.
    pub fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// Which client's register is at this offset of the file, if it is one that
    /// programs lease.
    #[inline(always)]
    pub fn register_at(&self, offset: u64) -> Option<(u32, u64)> {
        let at = offset.wrapping_sub(self.registers);
        let (client, register) = (at / PAGE, at % PAGE);
        (client >= u64::from(self.relays) && client < u64::from(self.geometry.clients))
            .then_some((client as u32, register))
    }

    /// Where these words of our mapping are in the file.
    pub fn offset_of(&self, words: &[AtomicU64]) -> u64 {
        (words.as_ptr() as u64).wrapping_sub(self.address())
    }

    /// A client's memory.
    #[inline(always)]
    pub fn client(&self, client: u32) -> Option<&ClientMemory<'static>> {
        self.clients.get(client as usize)
    }

    /// A word of page L.
    #[inline(always)]
    fn local(&self, offset: u64) -> &'static AtomicU32 {
        let word = &self.local[(offset / WORD) as usize];
        // SAFETY: the half of an aligned word that lives for ever; only atomic
        // operations touch it. `offset` is a constant, a multiple of 4.
        unsafe {
            AtomicU32::from_ptr(word.as_ptr().cast::<u32>().add((offset % WORD / 4) as usize))
        }
    }

    /// Whether somebody takes what is recorded.
    #[inline(always)]
    pub fn is_served(&self) -> bool {
        self.local(STATE).load(Relaxed) == State::Serving as u32
    }

    /// Whether the host wants to handle points of this name itself.
    #[inline(always)]
    pub fn has_triggers(&self, name_hash: u32) -> bool {
        let bit = u64::from(name_hash) % (TRIGGERS_BYTES * 8);
        let word = &self.local[(TRIGGERS / WORD + bit / 64) as usize];
        word.load(Relaxed) >> (bit % 64) & 1 != 0
    }

    /// A bell for each relay.
    pub fn bells(&'static self) -> &'static [Bell] {
        self.bells
            .get_or_init(|| (0..self.relays).map(|client| Bell { segment: self, client }).collect())
    }

    /// Has the host look at a client, now. On the thread of its lessee.
    pub fn ring(&self, client: u32) {
        let at = BELLS + u64::from(client);
        let word = &self.words[(at / WORD) as usize];
        // SAFETY: a byte of a word that lives for ever; only its own lessee
        // stores to it, and all others load.
        let bell =
            unsafe { AtomicU8::from_ptr(word.as_ptr().cast::<u8>().add((at % WORD) as usize)) };
        // ORDERING: pairs with the host's Acquire load: the registers are
        // stored.
        bell.store(bell.load(Relaxed).wrapping_add(1), Ordering::Release);
        // ORDERING: pairs with the host's fence between its word and its look
        // at the bells: one of the two sees what the other did.
        fence(Ordering::SeqCst);
        let watches = self.local(WATCH);
        // A host that is about to sleep does not.
        if watches.load(Relaxed) == watch::ASLEEP
            && watches.compare_exchange(watch::ASLEEP, watch::BELLS, Relaxed, Relaxed).is_ok()
        {
            // SAFETY: wakes whoever waits on the word, and does no more.
            unsafe {
                libc::syscall(libc::SYS_futex, watches.as_ptr(), libc::FUTEX_WAKE, 1);
            }
        }
    }

    /// Locks a client's byte against other processes.
    pub fn lock(&self, client: u32) -> bool {
        self.set_lock(client, libc::F_WRLCK)
    }

    /// Gives a client back.
    pub fn unlock(&self, client: u32) {
        self.set_lock(client, libc::F_UNLCK);
    }

    fn set_lock(&self, client: u32, kind: libc::c_int) -> bool {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: client.into(),
            l_len: 1,
            // Must be 0 for this kind of lock.
            l_pid: 0,
        };
        // SAFETY: fcntl reads `lock`, and nothing else of ours.
        unsafe { libc::fcntl(self.descriptor.load(Relaxed), libc::F_OFD_SETLK, &lock) == 0 }
    }

    /// In a forked child: a description of its own, which holds no lock, in the
    /// place of its parent's, which a child must not keep for it. Where there
    /// is no /proc, the child gets no relay.
    pub fn reopen(&self) {
        let inherited = self.descriptor.load(Relaxed);
        let own = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(format!("/proc/self/fd/{inherited}"));
        if inherited >= 0 {
            // SAFETY: our own descriptor, which nobody else in this thread-less
            // child uses.
            drop(unsafe { File::from_raw_fd(inherited) });
        }
        let own = own.map_or(-1, |file| out_of_the_way(file).into_raw_fd());
        self.descriptor.store(own, Relaxed);
    }
}

/// All clients of the rings region.
fn clients(
    rings: &'static [AtomicU64],
    geometry: &Geometry,
    mode: RingMode,
) -> Box<[ClientMemory<'static>]> {
    (0..geometry.clients)
        .filter_map(|client| ClientMemory::of_rings(rings, client, geometry, mode))
        .collect()
}

/// The same file description, by a descriptor that is seldom in the way.
fn out_of_the_way(file: File) -> File {
    // SAFETY: makes a new descriptor, which nobody else owns.
    unsafe {
        let high = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR);
        if high >= 0 { File::from_raw_fd(high) } else { file }
    }
}

fn map(file: &File, len: u64) -> io::Result<&'static [AtomicU64]> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    // SAFETY: a new mapping at an address that the kernel chooses. It is never
    // unmapped, and accessed by atomic operations only.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(std::slice::from_raw_parts(at.cast(), len / WORD as usize))
    }
}
