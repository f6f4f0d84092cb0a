//! The segment: the regions of a device in a file, mapped.
//!
//! Unsafe, because mapping is, and because shared memory is seen as atomics.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::{AtomicU32, AtomicU64};
use hypertrace_abi::config::{ConfigError, ConfigPage, HostFacts, RingMode};
use hypertrace_abi::layout::local::{BELLS, HOST_LOCK, HOST_PID, PAGE_L};
use hypertrace_abi::layout::{Geometry, GeometryError, PAGE, Region, WORD};
use hypertrace_abi::ring::ClientMemory;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, IntoBytes};

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// Sizes that cannot be.
    #[error("the segment cannot have these sizes")]
    Geometry(#[from] GeometryError),
    /// Something is there already.
    #[error(
        "{} exists: it may hold what a killed run left; save that with `hypertrace run --recover`, \
         or remove it",
        .0.display()
    )]
    Exists(PathBuf),
    /// The file cannot have so many bytes.
    #[error("cannot reserve {bytes} bytes for the segment {}: give it fewer clients or smaller \
             rings, or another file system", path.display())]
    Reserve {
        /// Which.
        path: PathBuf,
        /// Bytes that it has to have.
        bytes: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The system refused something.
    #[error("cannot {doing} the segment {}", path.display())]
    System {
        /// What: a verb.
        doing: &'static str,
        /// Which segment.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is something else.
    #[error("{} is not a segment", path.display())]
    NotOne {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: ConfigError,
    },
    /// It ends before its rings do.
    #[error("{} is cut off: it has {found} bytes of {expected}", path.display())]
    Short {
        /// Which.
        path: PathBuf,
        /// Bytes that it has.
        found: u64,
        /// Bytes that its config page tells.
        expected: u64,
    },
    /// A host serves it.
    #[error("{} is served by process {pid}: end that first", path.display())]
    Served {
        /// Which.
        path: PathBuf,
        /// By whom, as that said.
        pid: u32,
    },
}

impl SegmentError {
    /// Whether what was asked for is at fault, not the machine.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, SegmentError::Reserve { .. } | SegmentError::System { .. })
    }
}

/// A segment, mapped into its host.
#[derive(Debug)]
pub struct Segment {
    file: File,
    /// `None`: a memfd.
    path: Option<PathBuf>,
    /// The same file by a description of its own, which no child inherits: the
    /// host's lock is gone with the host.
    _lock: File,
    at: *mut u8,
    len: usize,
    page: ConfigPage,
    geometry: Geometry,
    mode: RingMode,
    /// Offset of the rings.
    rings: u64,
}

// SAFETY: what is behind `at` is accessed by atomic operations only.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment in memory: a memfd, which cannot be cut. It is gone with the
    /// last process that has it.
    ///
    /// # Errors
    /// If the geometry cannot be, or the system gives no memory.
    pub fn anonymous(geometry: &Geometry, facts: &HostFacts) -> Result<Segment, SegmentError> {
        geometry.check()?;
        let file = memfd(geometry.window_size()).map_err(failed("create", unnamed()))?;
        Segment::begin(file, None, geometry, facts)
    }

    /// A segment in a new file, on tmpfs for its speed: it outlives a crash of
    /// all who use it. Its memory is reserved, so that a full file system is an
    /// error here and not a signal later.
    ///
    /// # Errors
    /// If there is such a file already, or it cannot be made.
    pub fn create(
        path: &Path,
        geometry: &Geometry,
        facts: &HostFacts,
    ) -> Result<Segment, SegmentError> {
        geometry.check()?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => SegmentError::Exists(path.to_owned()),
                _ => failed("create", path)(source),
            })?;
        let made = reserve(&file, geometry)
            .map_err(|source| SegmentError::Reserve {
                path: path.to_owned(),
                bytes: used(geometry),
                source,
            })
            .and_then(|()| Segment::begin(file, Some(path.to_owned()), geometry, facts));
        if made.is_err() {
            // Ours, as it was not there.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn begin(
        file: File,
        path: Option<PathBuf>,
        geometry: &Geometry,
        facts: &HostFacts,
    ) -> Result<Segment, SegmentError> {
        let page = ConfigPage::new(geometry, facts);
        file.write_all_at(page.as_bytes(), 0)
            .map_err(failed("write", path.as_deref().unwrap_or(unnamed())))?;
        Segment::map(file, path, page)
    }

    /// The segment that somebody left in this file.
    ///
    /// # Errors
    /// If it is none, or a host serves it.
    pub fn open(path: &Path) -> Result<Segment, SegmentError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(failed("open", path))?;
        let mut bytes = [0; size_of::<ConfigPage>()];
        let found = file.metadata().map_err(failed("look at", path))?.len();
        if found >= PAGE {
            file.read_exact_at(&mut bytes, 0).map_err(failed("read", path))?;
        }
        let page = ConfigPage::read_from_bytes(&bytes);
        let page = page.map_err(|_| failed("read", path)(io::ErrorKind::InvalidData.into()))?;
        let geometry = page
            .geometry()
            .map_err(|source| SegmentError::NotOne { path: path.to_owned(), source })?;
        if found < used(&geometry) {
            let (path, expected) = (path.to_owned(), used(&geometry));
            return Err(SegmentError::Short { path, found, expected });
        }
        Segment::map(file, Some(path.to_owned()), page)
    }

    fn map(file: File, path: Option<PathBuf>, page: ConfigPage) -> Result<Segment, SegmentError> {
        let name = path.as_deref().unwrap_or(unnamed());
        let not_one = |source| SegmentError::NotOne { path: name.to_owned(), source };
        let geometry = page.geometry().map_err(not_one)?;
        let mode = page.ring_mode().map_err(not_one)?;
        let own = Path::new("/proc/self/fd").join(file.as_raw_fd().to_string());
        let lock = OpenOptions::new().read(true).write(true).open(own);
        let lock = lock.map_err(failed("open again", name))?;
        let is_ours = take(&lock).map_err(failed("lock", name))?;
        let len = used(&geometry) as usize;
        // SAFETY: a new mapping at an address that the kernel chooses, of a
        // file that is as long.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let file = file.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file, 0)
        };
        if at == libc::MAP_FAILED {
            return Err(failed("map", name)(io::Error::last_os_error()));
        }
        let at = at.cast();
        let rings = geometry.window_offset(Region::Rings);
        let segment = Segment { file, path, _lock: lock, at, len, page, geometry, mode, rings };
        if !is_ours {
            let pid = segment.word32(HOST_PID).load(std::sync::atomic::Ordering::Relaxed);
            return Err(SegmentError::Served { path: segment.name().to_owned(), pid });
        }
        Ok(segment)
    }

    /// Its file, if it has a name.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    fn name(&self) -> &Path {
        self.path().unwrap_or(unnamed())
    }

    /// Its descriptor's number, if it is without a name.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        self.path.is_none().then(|| self.file.as_raw_fd())
    }

    /// What a program finds it by: its path, from the root, or that of a
    /// descriptor that the program inherits.
    pub fn location(&self) -> OsString {
        match &self.path {
            Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()).into(),
            None => format!("/proc/self/fd/{}", self.file.as_raw_fd()).into(),
        }
    }

    /// Removes its file.
    pub(crate) fn remove(&self) {
        if let Some(path) = &self.path {
            // Not there any more, or not to be removed: it does no harm.
            let _ = std::fs::remove_file(path);
        }
    }

    /// The config page, as it was written or found.
    pub fn page(&self) -> &ConfigPage {
        &self.page
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Where it is mapped, for ever as long as this lives: what a `Channel` of
    /// this very process is made of.
    pub fn address(&self) -> *mut u8 {
        self.at
    }

    /// The addresses of the mapping.
    pub(crate) fn range(&self) -> Range<usize> {
        let at = self.at as usize;
        at..at + self.len
    }

    /// Clients that relay others' points, and all.
    pub(crate) fn clients(&self) -> (u32, u32) {
        let all = self.geometry.clients;
        (u32::try_from(self.page.vcpu_clients).map_or(all, |n| n.min(all)), all)
    }

    fn words(&self, offset: u64, bytes: u64) -> &[AtomicU64] {
        assert!(
            offset.is_multiple_of(WORD) && offset + bytes <= self.len as u64,
            "inside the mapping"
        );
        // SAFETY: inside the mapping, which lives as long as `self`; aligned;
        // shared memory is accessed by atomic operations only.
        unsafe {
            let at = self.at.add(offset as usize).cast();
            std::slice::from_raw_parts(at, (bytes / WORD) as usize)
        }
    }

    /// The rings region.
    pub(crate) fn rings(&self) -> &[AtomicU64] {
        self.words(self.rings, self.geometry.rings_size())
    }

    /// One client's memory.
    pub(crate) fn client(&self, client: u32) -> Option<ClientMemory<'_>> {
        ClientMemory::of_rings(self.rings(), client, &self.geometry, self.mode)
    }

    /// What a full ring does.
    pub(crate) fn mode(&self) -> RingMode {
        self.mode
    }

    /// The bells, eight in a word.
    pub(crate) fn bells(&self) -> &[AtomicU64] {
        self.words(BELLS, u64::from(self.geometry.clients).next_multiple_of(WORD))
    }

    /// Words of page L.
    pub(crate) fn page_l(&self, offset: u64, bytes: u64) -> &[AtomicU64] {
        self.words(PAGE_L + offset, bytes)
    }

    /// A u32 of page L.
    pub(crate) fn word32(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset < PAGE, "a word of the page");
        // SAFETY: as in `words`.
        unsafe { &*self.at.add((PAGE_L + offset) as usize).cast() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this type owns the mapping; nobody has a reference any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Bytes up to the last ring's end.
fn used(geometry: &Geometry) -> u64 {
    geometry.window_offset(Region::Rings) + geometry.rings_size()
}

fn unnamed() -> &'static Path {
    Path::new("in memory")
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SegmentError + 'a {
    move |source| SegmentError::System { doing, path: path.to_owned(), source }
}

fn reserve(file: &File, geometry: &Geometry) -> io::Result<()> {
    // SAFETY: a descriptor of ours and two numbers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, used(geometry) as libc::off_t) } {
        0 => file.set_len(geometry.window_size()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Takes the host's lock. `false`: another has it.
fn take(file: &File) -> io::Result<bool> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: HOST_LOCK as libc::off_t,
        l_len: 1,
        // Must be 0 for this kind of lock.
        l_pid: 0,
    };
    // SAFETY: fcntl reads `lock`, and nothing else of ours.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        why if matches!(why.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        why => Err(why),
    }
}

fn memfd(bytes: u64) -> io::Result<File> {
    let file = memfd_create("hypertrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(file);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
