//! The segment: a mapped file with the regions of a device in it.
//!
//! The code is unsafe because posix_fallocate(3) is a C function.
#![allow(unsafe_code)]

use crate::local::LocalPages;
use crate::lock::{LockFile, own_description};
use crate::mapping::Mapping;
use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace_abi::config::{CONFIG_WORDS, ConfigError, ConfigPage, Features, HostInfo, RingMode};
use hypertrace_abi::file::{check_size, memfd};
use hypertrace_abi::layout::local::HOST_LOCK;
use hypertrace_abi::layout::{
    Geometry, GeometryError, MIN_BAR, PAGE, Region, WORD, guest_page, host_page,
};
use hypertrace_abi::ring::ClientMemory;
use hypertrace_abi::zerocopy::IntoBytes;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, linkat, openat, statat, unlinkat,
};
use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Reason why there is no segment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The sizes are not valid.
    #[error("the segment cannot have these sizes")]
    Geometry(#[from] GeometryError),
    /// The file exists already.
    #[error(
        "{} exists: it may hold what a killed run left; save that with `hypertrace recover`, \
         or remove it",
        .0.display()
    )]
    Exists(PathBuf),
    /// The file exists already, and is no segment.
    #[error(
        "{} exists, and is no segment: QEMU makes such a file if it is started first; end that VM, remove the file, \
         and start this before the VM",
        .0.display()
    )]
    Foreign(PathBuf),
    /// The file cannot have so many bytes.
    #[error("cannot reserve {bytes} bytes for the segment {}: give it fewer clients or smaller \
             rings, or another file system", path.display())]
    Reserve {
        /// The file.
        path: PathBuf,
        /// Number of bytes that the file has to have.
        bytes: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The system refused an action.
    #[error("cannot {doing} the segment {}", path.display())]
    System {
        /// Action that was refused, as a verb.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is too short to be a segment.
    #[error("{} is not a segment: it has {found} bytes and no room for a config page", path.display())]
    NoPage {
        /// The file.
        path: PathBuf,
        /// Number of bytes that the file has.
        found: u64,
    },
    /// The file has no config page of this version.
    #[error("{} is not a segment", path.display())]
    NotOne {
        /// The file.
        path: PathBuf,
        /// Defect of the config page.
        #[source]
        source: ConfigError,
    },
    /// The file belongs to another user, who may read and cut it at any time.
    #[error(
        "{} belongs to user {owner}, neither to user {user} who runs this nor to root",
        path.display()
    )]
    NotOwned {
        /// The file.
        path: PathBuf,
        /// Owner of the file.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The file is the memory of a device.
    #[error("{} is not a segment: it is a device's, as its config page says TRAPS", .0.display())]
    Device(PathBuf),
    /// The file ends before its rings do.
    #[error("{} is cut off: it has {found} bytes, and its config page says {expected}", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Number of bytes that the file has.
        found: u64,
        /// Number of bytes that the config page states.
        expected: u64,
    },
    /// A host serves the segment.
    #[error("{} is served by process {pid}: end that first", path.display())]
    Served {
        /// The file.
        path: PathBuf,
        /// Id of the host's process, as the host has stored it.
        pid: u32,
    },
}

/// The name of a file in a directory. The directory is kept open, so that another directory that later gets
/// the same path is left alone.
#[derive(Debug)]
struct Entry {
    directory: OwnedFd,
    name: OsString,
    inode: (u64, u64),
}

impl Entry {
    /// Creates a file for this path. The file gets its name by [`Entry::link`], unless the file system has no
    /// files without a name.
    fn create(path: &Path) -> io::Result<(Entry, File)> {
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_owned();
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, above.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        if statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let named = || openat(&directory, &name, flags | OFlags::CREATE | OFlags::EXCL, mode);
        let file = openat(&directory, ".", flags | OFlags::TMPFILE, mode).or_else(|_| named())?;
        let stat = fstat(&file)?;
        Ok((Entry { directory, name, inode: (stat.st_dev, stat.st_ino) }, file.into()))
    }

    /// Gives the file its name, if the file has none. If another file has the name, the call fails.
    fn link(&self, file: &File) -> io::Result<()> {
        if fstat(file)?.st_nlink == 0 {
            let file = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, file, &self.directory, &self.name, AtFlags::SYMLINK_FOLLOW)?;
        }
        Ok(())
    }

    /// Removes the file, unless the name now belongs to another file.
    fn remove(&self) {
        let found = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| (found.st_dev, found.st_ino) == self.inode) {
            // A file that cannot be removed does no harm.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// A segment, mapped.
#[derive(Debug)]
pub struct Segment {
    file: File,
    /// Path of the file; `None` for a memfd.
    path: Option<PathBuf>,
    /// Name of the file, if this value created the file.
    entry: Option<Entry>,
    /// The host's own description of the file. No child inherits this description, so the host's locks end
    /// with the host.
    host_lock: Option<LockFile>,
    mapping: Mapping,
    page: ConfigPage,
    geometry: Geometry,
    mode: RingMode,
}

impl Segment {
    /// Creates a segment in memory, which this process will serve. The segment is a memfd: nobody can cut the
    /// memfd, and the memfd lives until its last descriptor and its last mapping are gone.
    ///
    /// # Errors
    /// If the geometry is not valid, or the system gives no memory.
    pub fn anonymous(geometry: &Geometry, facts: &HostInfo) -> Result<Segment, SegmentError> {
        geometry.check()?;
        let file = memfd(geometry.window_size()).map_err(failed("create", unnamed()))?;
        Segment::begin(file, None, geometry, facts)
    }

    /// Creates a segment in a new file, which this process will serve. The file should be on tmpfs for its
    /// speed, and outlives a crash of all its users. The file's memory is reserved, so that a full file
    /// system is an error here and not a signal later. The file has `size` bytes, or more if the segment
    /// needs more.
    ///
    /// # Errors
    /// If there is such a file already, or the file cannot be made.
    pub fn create(
        path: &Path,
        size: Option<u64>,
        geometry: &Geometry,
        facts: &HostInfo,
    ) -> Result<Segment, SegmentError> {
        geometry.check()?;
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => exists(path),
            _ => failed("create", path)(source),
        };
        let (entry, file) = Entry::create(path).map_err(refused)?;
        let made = reserve(&file, size, geometry)
            .map_err(|source| SegmentError::Reserve {
                path: path.to_owned(),
                bytes: used(geometry),
                source,
            })
            .and_then(|()| Segment::begin(file, Some(path.to_owned()), geometry, facts))
            // A program that finds the file can use the file at once.
            .and_then(|segment| entry.link(&segment.file).map(|()| segment).map_err(refused));
        match made {
            Ok(segment) => Ok(Segment { entry: Some(entry), ..segment }),
            Err(why) => {
                entry.remove();
                Err(why)
            }
        }
    }

    fn begin(
        file: File,
        path: Option<PathBuf>,
        geometry: &Geometry,
        facts: &HostInfo,
    ) -> Result<Segment, SegmentError> {
        let page = ConfigPage::new(geometry, facts);
        file.write_all_at(page.words().as_bytes(), 0)
            .map_err(failed("write", path.as_deref().unwrap_or(unnamed())))?;
        Segment::map(file, path, page)?.to_serve()
    }

    /// Returns the sizes of a segment that fits into `bytes` bytes and has the largest possible rings, which
    /// have at most 1 MiB each. Returns `None` if no segment fits.
    pub fn fitting(bytes: u64, clients: u32) -> Option<Geometry> {
        let rings = (16..=20).rev().map(|log| 1 << log);
        let mut all = rings.map(|ring_bytes| Geometry::for_programs(clients, ring_bytes));
        all.find(|geometry| geometry.check().is_ok() && used(geometry) <= bytes)
    }

    /// Opens the segment in this file, to trace into the segment. The file must belong to this user or to
    /// root. `path` may name a descriptor of another process, as [`Segment::location`] does. If this process
    /// cannot use that descriptor, this function opens this process's own descriptor of the same number. This
    /// process has inherited such a descriptor, so the segment may belong to any user.
    ///
    /// # Errors
    /// If the file is no segment, or belongs to another user.
    pub fn open(path: &Path) -> Result<Segment, SegmentError> {
        let opened = Segment::open_at(path).and_then(Segment::check_owner);
        match inherited(path).filter(|_| opened.is_err()) {
            Some(own) => Segment::open_at(&own).or(opened),
            None => opened,
        }
    }

    /// Opens the segment in this file, of any user, to recover it.
    ///
    /// # Errors
    /// If the file is no segment.
    pub fn open_of_anyone(path: &Path) -> Result<Segment, SegmentError> {
        Segment::open_at(path)
    }

    fn check_owner(self) -> Result<Segment, SegmentError> {
        let owner =
            fstat(&self.file).map_err(|why| failed("look at", self.name())(why.into()))?.st_uid;
        let user = geteuid().as_raw();
        match owner == user || owner == 0 {
            true => Ok(self),
            false => Err(SegmentError::NotOwned { path: self.name().to_owned(), owner, user }),
        }
    }

    fn open_at(path: &Path) -> Result<Segment, SegmentError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
            .open(path)
            .map_err(failed("open", path))?;
        Segment::of_file(file, path)
    }

    /// Opens a segment from an open file. The file may belong to any user. `path` is the file's name in
    /// errors.
    ///
    /// # Errors
    /// If the file is no segment.
    pub fn of_file(file: File, path: &Path) -> Result<Segment, SegmentError> {
        let found = file.metadata().map_err(failed("look at", path))?.len();
        let path = path.to_owned();
        if found < MIN_BAR {
            return Err(SegmentError::NoPage { path, found });
        }
        // Reads the page once, because other programs can change it.
        let mut words = [0; CONFIG_WORDS];
        file.read_exact_at(words.as_mut_bytes(), 0).map_err(failed("read", &path))?;
        Segment::map(file, Some(path), ConfigPage::from_words(&words))
    }

    fn map(file: File, path: Option<PathBuf>, page: ConfigPage) -> Result<Segment, SegmentError> {
        let name = path.as_deref().unwrap_or(unnamed());
        let not_one = |source| SegmentError::NotOne { path: name.to_owned(), source };
        let geometry = page.geometry().map_err(not_one)?;
        let mode = page.ring_mode().map_err(not_one)?;
        if page.features().contains(Features::TRAPS) {
            return Err(SegmentError::Device(name.to_owned()));
        }
        let expected = used(&geometry);
        let found = file.metadata().map_err(failed("look at", name))?.len();
        if found < expected {
            return Err(SegmentError::Short { path: name.to_owned(), found, expected });
        }
        let mapping = Mapping::new(&file, 0, expected, true).map_err(|source| {
            match source.raw_os_error() {
                // The process has no addresses left, as under `ulimit -v`.
                Some(libc::ENOMEM) => {
                    SegmentError::Reserve { path: name.to_owned(), bytes: expected, source }
                }
                _ => failed("map", name)(source),
            }
        })?;
        Ok(Segment { file, path, entry: None, host_lock: None, mapping, page, geometry, mode })
    }

    /// Makes this process the segment's host, until the result is dropped.
    ///
    /// # Errors
    /// If another process is the host.
    pub fn to_serve(mut self) -> Result<Segment, SegmentError> {
        let own = own_description(self.file.as_fd()).map_err(failed("open again", self.name()))?;
        let lock = LockFile::new(own, 0, LockFile::ANY);
        if !lock.try_lock(HOST_LOCK as u32).map_err(failed("lock", self.name()))? {
            let pid = self.local().host_pid().load(Relaxed);
            return Err(SegmentError::Served { path: self.name().to_owned(), pid });
        }
        self.host_lock = Some(lock);
        Ok(self)
    }

    /// Returns the path of the segment's file, if the file has a name.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    fn name(&self) -> &Path {
        self.path().unwrap_or(unnamed())
    }

    /// Returns the descriptor number of the file, if the file has no name.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.path.is_none().then(|| self.file.as_raw_fd())
    }

    /// Returns the path that a program uses to find the segment: the file's absolute path, or the path of
    /// this process's descriptor. If a program belongs to another user, or cannot see this process in /proc,
    /// the program has to inherit the descriptor under the same number.
    pub fn location(&self) -> OsString {
        if let Some(path) = &self.path {
            return std::path::absolute(path).unwrap_or_else(|_| path.clone()).into();
        }
        // The path needs the process id that /proc shows for this process, because /proc may belong to
        // another PID namespace.
        let process = std::fs::read_link("/proc/self").unwrap_or_else(|_| "self".into());
        let descriptor = self.file.as_raw_fd().to_string();
        Path::new("/proc").join(process).join("fd").join(descriptor).into()
    }

    /// Removes the segment's file if this value created the file, unless the name now belongs to another
    /// file.
    pub fn remove(&self) {
        if let Some(entry) = &self.entry {
            entry.remove();
        }
    }

    /// Returns the config page, as this process wrote or found it.
    pub fn page(&self) -> &ConfigPage {
        &self.page
    }

    /// Writes the config page again, after restored memory has replaced the segment's memory. Returns true if
    /// the restored memory belonged to this session, too.
    pub fn write_page_again(&self) -> bool {
        let session = offset_of!(ConfigPage, session) / 8;
        let mut is_own = true;
        for (at, (word, own)) in self.mapping.words().iter().zip(self.page.words()).enumerate() {
            is_own &= !(session..session + 2).contains(&at) || word.load(Relaxed) == own;
            word.store(own, Relaxed);
        }
        is_own
    }

    /// Returns the sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns what a full ring does with new records.
    pub fn mode(&self) -> RingMode {
        self.mode
    }

    /// Returns the number of clients that relay the points of other clients, and the number of all clients.
    pub fn clients(&self) -> (u32, u32) {
        let all = self.geometry.clients;
        (u32::try_from(self.page.vcpu_clients).map_or(all, |n| n.min(all)), all)
    }

    /// Returns the segment's memory, up to the last ring's end.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the address where the segment is mapped, valid as long as this value lives, for a `Channel` of
    /// this process.
    pub fn address(&self) -> *mut u8 {
        self.mapping.address()
    }

    /// Returns page L and the bells.
    #[inline(always)]
    pub fn local(&self) -> LocalPages<'_> {
        LocalPages::of(self.mapping.words()).expect("every geometry has a whole config region")
    }

    /// Returns the rings region.
    pub fn rings(&self) -> &[AtomicU64] {
        let rings = self.geometry.window_offset(Region::Rings);
        &self.mapping.words()[(rings / WORD) as usize..]
    }

    /// Returns one client's memory.
    pub fn client(&self, client: u32) -> Option<ClientMemory<'_>> {
        ClientMemory::of_rings(self.rings(), client, &self.geometry, self.mode)
    }

    /// Returns true if a process has the client now, as the client's lock shows.
    pub fn is_held(&self, client: u32) -> bool {
        let Some(lock) = &self.host_lock else { return false };
        let is_free = lock.lock(client);
        if is_free {
            lock.unlock(client);
        }
        !is_free
    }

    /// If the host has taken all records of a client's ring, and no thread has the client, gives the system
    /// back the memory that the ring does not need. Otherwise, returns false. The function also returns false
    /// if the segment has a file of its own, because the file's memory is reserved.
    ///
    /// During this call, the host has the client's lock, so no thread leases the client and writes to the
    /// ring.
    pub fn give_back(&self, client: u32) -> bool {
        let (Some(lock), None) = (&self.host_lock, &self.path) else { return false };
        let Some(memory) = self.client(client).filter(|_| lock.lock(client)) else { return false };
        let is_empty = memory.guest[guest_page::HEAD].load(Relaxed)
            == memory.host[host_page::TAIL].load(Relaxed);
        let is_given = is_empty && self.free_all_but(client, memory.live()).is_ok();
        lock.unlock(client);
        is_given
    }

    /// Fills a ring with zeros and frees the ring's pages, but keeps the pages of one part. The part is given
    /// by the index of its first word and by its number of words.
    fn free_all_but(&self, client: u32, (first, words): (u64, u64)) -> io::Result<()> {
        let ring = self.geometry.ring_bytes;
        // The freed area begins at the part's end and ends at the part's beginning, because the ring
        // continues with its first word after its last word.
        let begin = ((first + words) * WORD).next_multiple_of(PAGE);
        let end = (first * WORD + ring) / PAGE * PAGE;
        let area = self.geometry.window_offset(Region::Rings) + self.geometry.client_offset(client);
        let at = area + self.geometry.client_stride() - ring;
        for (begin, end) in [(begin, end.min(ring)), (begin.max(ring) - ring, end.max(ring) - ring)]
        {
            if begin < end {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, flags, at + begin, end - begin)?;
            }
        }
        Ok(())
    }

    /// Takes the segment apart: returns the file, the file's memory, and the copy of the config page against
    /// which the file and the memory were checked.
    pub fn into_parts(self) -> (File, Mapping, ConfigPage) {
        (self.file, self.mapping, self.page)
    }
}

fn exists(path: &Path) -> SegmentError {
    let mut bytes = [0; size_of::<ConfigPage>()];
    // Opening another kind of file might block.
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let mut read = || File::open(path)?.read_exact_at(&mut bytes, 0);
    let is_zeros = is_file && read().is_ok() && bytes.iter().all(|byte| *byte == 0);
    match is_zeros {
        true => SegmentError::Foreign(path.to_owned()),
        false => SegmentError::Exists(path.to_owned()),
    }
}

/// Returns the number of bytes up to the last ring's end.
fn used(geometry: &Geometry) -> u64 {
    geometry.window_offset(Region::Rings) + geometry.rings_size()
}

/// If `path` names a descriptor of a process in /proc, returns the path of this process's own descriptor with
/// the same number.
fn inherited(path: &Path) -> Option<PathBuf> {
    let (process, descriptor) = path.strip_prefix("/proc").ok()?.to_str()?.split_once("/fd/")?;
    process.parse::<u32>().ok()?;
    let descriptor: u32 = descriptor.parse().ok()?;
    Some(format!("/proc/self/fd/{descriptor}").into())
}

fn unnamed() -> &'static Path {
    Path::new("in memory")
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SegmentError + 'a {
    move |source| SegmentError::System { doing, path: path.to_owned(), source }
}

fn reserve(file: &File, size: Option<u64>, geometry: &Geometry) -> io::Result<()> {
    let size = size.unwrap_or_else(|| geometry.window_size());
    check_size(size.max(used(geometry)))?;
    // The code calls the C library's function, because the C library has a fallback for a file system that
    // lacks the call. SAFETY: the call takes an open descriptor and two numbers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, used(geometry) as libc::off_t) } {
        0 => file.set_len(size.max(used(geometry))),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::chown;

    #[test]
    fn a_segment_of_another_user_is_used_only_if_it_is_inherited() {
        if !geteuid().is_root() {
            println!("not run: a file of another user, which only root makes");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let geometry = Geometry { clients: 1, ..Geometry::default() };
        let segment = Segment::create(&path, None, &geometry, &HostInfo::default()).unwrap();
        Segment::open(&path).unwrap();

        chown(&path, Some(65534), None).unwrap();

        let refused = Segment::open(&path).unwrap_err();
        assert!(
            matches!(refused, SegmentError::NotOwned { owner: 65534, user: 0, .. }),
            "{refused}"
        );
        Segment::open_of_anyone(&path).unwrap();
        // No process has this number.
        let descriptor = segment.file.as_raw_fd();
        Segment::open(Path::new(&format!("/proc/{}/fd/{descriptor}", u32::MAX))).unwrap();
    }

    #[test]
    fn a_program_that_finds_the_file_can_use_it_at_once() {
        // tmpfs has files without a name.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for number in 0..20 {
            let path = dir.path().join(number.to_string());
            let geometry = Geometry { clients: 16, ..Geometry::default() };
            std::thread::scope(|scope| {
                let made =
                    scope.spawn(|| Segment::create(&path, None, &geometry, &HostInfo::default()));
                while !path.exists() && !made.is_finished() {}
                Segment::open(&path).unwrap();
                made.join().unwrap().unwrap().remove();
            });
        }
    }

    #[test]
    fn the_file_is_removed_from_its_own_directory_only() {
        let dir = tempfile::tempdir().unwrap();
        let [own, moved] = ["own", "moved"].map(|name| dir.path().join(name));
        fs::create_dir(&own).unwrap();
        let geometry = Geometry { clients: 1, ..Geometry::default() };
        let facts = HostInfo::default();
        let segment = Segment::create(&own.join("segment"), None, &geometry, &facts).unwrap();
        // Another directory gets the path, with the same file in it.
        fs::rename(&own, &moved).unwrap();
        fs::create_dir(&own).unwrap();
        fs::hard_link(moved.join("segment"), own.join("segment")).unwrap();

        segment.remove();

        assert!(own.join("segment").exists() && !moved.join("segment").exists());
    }
}
