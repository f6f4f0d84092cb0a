//! Files of records, mapped a window at a time.
//!
//! A vCPU's thread stores its records to a window of memory. The [`Keeper`]'s thread keeps the next window
//! ready, and unmaps full windows, so a record costs a store, and no system call. Stored records are in the
//! file, even after a kill.
//!
//! The code is unsafe because other processes could change a mapped file.
#![allow(unsafe_code)]

use hypertrace_functions::record::Record;
use hypertrace_segment::signals::SignalsBlocked;
use memmap2::{Advice, MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Sizes of a file's first window and of its largest windows in bytes. Each window is twice as large as the
/// previous window, up to the largest size. Therefore a track with few records takes little room on the disk.
pub const FIRST: usize = 256 << 10;
pub const LARGEST: usize = 32 << 20;

/// Size of a record in bytes.
pub const RECORD: usize = 16;

/// Pause of the keeper's thread between two passes. Even the first windows last longer than this pause at any
/// rate of records that an emulator reaches.
const PAUSE: Duration = Duration::from_millis(2);

/// Maximum time that a vCPU's thread waits for a window. After one late window, the thread waits for no
/// further window.
const PATIENCE: Duration = Duration::from_secs(10);

/// File with the records of a vCPU at one privilege level.
#[derive(Debug)]
pub struct Track {
    shared: Arc<Shared>,
    window: Option<MmapMut>,
    at: usize,
    patience: Duration,
    /// Records that are held for the next window, because the window is late.
    held: Vec<Record>,
    /// Number of records that were dropped after the held records; `None` while the track drops no records.
    dropped: Option<u64>,
}

/// Part of a track that the track's keeper uses, too.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// Device and inode of the file.
    id: (u64, u64),
    exchange: Mutex<Exchange>,
}

/// Windows that a track and the track's keeper hand to each other.
#[derive(Debug, Default)]
struct Exchange {
    next: Option<MmapMut>,
    full: Option<MmapMut>,
    /// Number of the file's bytes that are or were mapped.
    mapped: u64,
    /// Whether no further window will be mapped.
    is_closed: bool,
}

impl Track {
    /// Stores a record, or holds it if the next window [is late](Self::is_late).
    #[inline]
    pub fn push(&mut self, record: Record) {
        if let Some(window) = &mut self.window
            && let Some(place) = window.get_mut(self.at..self.at + RECORD)
        {
            place.copy_from_slice(&record.to_bytes());
            self.at += RECORD;
            return;
        }
        self.push_to_next(record);
    }

    /// Stores an entry or exit that a gap in the records makes necessary. While records are dropped, this
    /// call stores nothing. The record's function had its exit before the gap, and will get its entry after
    /// the gap.
    pub fn push_unless_dropping(&mut self, record: Record) {
        if self.dropped.is_none() {
            self.push(record);
        }
    }

    /// Returns whether records are held because the next window is late, or will never come. The caller holds
    /// the records of one event, and then [drops](Self::drop_further) further records, so that the held
    /// records need little memory.
    #[inline]
    pub fn is_late(&self) -> bool {
        !self.held.is_empty()
    }

    /// Drops and counts all records from now on, until [`resume`](Self::resume) finds the next window.
    pub fn drop_further(&mut self) {
        self.dropped = Some(0);
    }

    /// Returns the number of dropped records, or `None` if records are not being dropped.
    pub fn dropped(&self) -> Option<u64> {
        self.dropped
    }

    /// If the next window is there by now, stores the held records and stops dropping. Returns the time of
    /// the last held record.
    pub fn resume(&mut self) -> Option<u64> {
        let last = self.held.last()?.time;
        (self.turn() == Some(true)).then(|| {
            self.dropped = None;
            std::mem::take(&mut self.held).into_iter().for_each(|record| self.push(record));
            last
        })
    }

    /// Returns the held records.
    pub fn held(&self) -> &[Record] {
        &self.held
    }

    #[cold]
    fn push_to_next(&mut self, record: Record) {
        if let Some(dropped) = &mut self.dropped {
            *dropped += 1;
            return;
        }
        let begin = Instant::now();
        while !self.is_late() {
            match self.turn() {
                Some(true) => return self.push(record),
                None if begin.elapsed() < self.patience => thread::yield_now(),
                _ => break,
            }
        }
        self.patience = Duration::ZERO;
        self.held.push(record);
    }

    /// Takes the next window. Returns true if a new window is mapped, `None` if the window is not ready yet,
    /// and false if no further window will come.
    fn turn(&mut self) -> Option<bool> {
        // The keeper holds the lock only while the keeper stores a few values.
        let mut exchange = self.shared.exchange.try_lock().ok()?;
        if exchange.full.is_none() {
            exchange.full = self.window.take();
        }
        if self.window.is_some() {
            return None;
        }
        self.window = exchange.next.take();
        self.at = 0;
        match self.window {
            Some(_) => Some(true),
            None if exchange.is_closed => Some(false),
            None => None,
        }
    }
}

impl Shared {
    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the window that begins at this offset of the file.
    ///
    /// The file is open only during this call, because the program in QEMU may close any descriptor of the
    /// process.
    fn window(&self, mapped: u64) -> io::Result<MmapMut> {
        let bytes = window_bytes(mapped);
        let file = open(&self.path)?;
        // The program may have closed the descriptor and reused its number, or replaced the file.
        if id(&file)? != self.id {
            return Err(io::Error::other("it is another file by now"));
        }
        // A store to a page for which the disk has no room would raise a signal.
        fallocate(&file, FallocateFlags::empty(), mapped, bytes as u64)?;
        // SAFETY: the file belongs to this process, and no other process changes its size.
        let window = unsafe { MmapOptions::new().offset(mapped).len(bytes).map_mut(&file)? };
        // Without this advice, the vCPU's thread would take a page fault for each page. Linux has the advice
        // from 5.14 on.
        let _ = window.advise(Advice::PopulateWrite);
        Ok(window)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

/// Returns a file's device and inode.
fn id(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Returns the size of the window that begins at this offset of a file.
fn window_bytes(mapped: u64) -> usize {
    // The windows have 1, 2, 4, ... units: each window is one unit larger than all previous windows together.
    let all = usize::try_from(mapped).unwrap_or(usize::MAX);
    all.saturating_add(FIRST).min(LARGEST)
}

/// Keeps a window ready for each track.
#[derive(Debug)]
pub struct Keeper {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    tracks: Mutex<Vec<Arc<Shared>>>,
    /// Number of bytes that may still be mapped.
    left: AtomicU64,
    ends: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

/// Reason why there are no further windows.
#[derive(Debug)]
pub struct Failure {
    /// Path of the file whose next window could not be made.
    pub path: PathBuf,
    /// Cause; `None`: the limit was reached.
    pub source: Option<io::Error>,
}

impl Keeper {
    /// Starts the thread. All files together have at most `limit` bytes.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(limit: u64) -> io::Result<Keeper> {
        let inner = Arc::new(Inner {
            tracks: Mutex::default(),
            left: AtomicU64::new(limit),
            ends: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        let keeps = Arc::clone(&inner);
        let run = move || {
            while !keeps.ends.load(Relaxed) {
                keeps.pass();
                thread::sleep(PAUSE);
            }
        };
        // Signals are blocked in the new thread, because the threads of the guest and of QEMU have to handle
        // all signals.
        let _signals_blocked = SignalsBlocked::begin_to_write();
        let thread = thread::Builder::new().name("functions".into()).spawn(run)?;
        Ok(Keeper { inner, thread: Some(thread) })
    }

    /// Makes a track of an empty file.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped.
    pub fn track(&self, path: &Path) -> io::Result<Track> {
        let id = id(&open(path)?)?;
        let exchange = Mutex::default();
        let shared = Arc::new(Shared { path: path.to_owned(), id, exchange });
        self.inner.serve(&shared);
        let mut track = Track {
            shared,
            window: None,
            at: 0,
            patience: PATIENCE,
            held: Vec::new(),
            dropped: None,
        };
        track.turn();
        self.inner.serve(&track.shared);
        lock(&self.inner.tracks).push(Arc::clone(&track.shared));
        Ok(track)
    }

    /// Ends the thread. After the thread's end, tracks get no further window. Returns the reason if a window
    /// could not be made.
    pub fn end(mut self) -> Option<Failure> {
        self.inner.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for track in lock(&self.inner.tracks).iter() {
            track.exchange().is_closed = true;
        }
        lock(&self.inner.failure).take()
    }
}

#[cfg(test)]
impl Keeper {
    /// Makes a keeper without a thread, and a track that does not wait for its windows. The track gets a
    /// window only when a test calls [`pass`](Self::pass).
    pub fn at_rest(path: &Path) -> (Keeper, Track) {
        let keeper = Keeper::start(1 << 30).unwrap();
        keeper.inner.ends.store(true, Relaxed);
        let Keeper { inner, thread } = keeper;
        thread.unwrap().join().unwrap();
        let keeper = Keeper { inner, thread: None };
        File::create_new(path).unwrap();
        let track = keeper.track(path).unwrap();
        (keeper, Track { patience: Duration::ZERO, ..track })
    }

    pub fn pass(&self) {
        self.inner.pass();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn pass(&self) {
        let tracks = lock(&self.tracks).clone();
        tracks.iter().for_each(|track| self.serve(track));
    }

    /// Unmaps a track's full window, and maps the track's next window.
    fn serve(&self, track: &Shared) {
        let (full, wanted) = {
            let mut exchange = track.exchange();
            let is_wanted = exchange.next.is_none() && !exchange.is_closed;
            (exchange.full.take(), is_wanted.then_some(exchange.mapped))
        };
        drop(full);
        let Some(mapped) = wanted else { return };
        let bytes = window_bytes(mapped) as u64;
        // The code subtracts the bytes from the limit before the window is made, because other threads may
        // make tracks at the same time.
        let made = match self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)) {
            Ok(_) => track.window(mapped).map_err(|why| {
                self.left.fetch_add(bytes, Relaxed);
                Some(why)
            }),
            Err(_) => Err(None),
        };
        let mut exchange = track.exchange();
        match made {
            Ok(window) => (exchange.next, exchange.mapped) = (Some(window), mapped + bytes),
            Err(source) => {
                exchange.is_closed = true;
                lock(&self.failure).get_or_insert(Failure { path: track.path.clone(), source });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_functions::record::RecordType;

    const RECORD_1: Record = Record { time: 1, kind: RecordType::Entry, depth: 0, address: 1 };

    #[test]
    fn windows_double_up_to_the_largest() {
        let mut mapped = 0;
        let sizes = [(); 9].map(|()| {
            let bytes = window_bytes(mapped);
            mapped += bytes as u64;
            bytes >> 10
        });
        assert_eq!(
            sizes,
            [256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 32 << 10]
        );
    }

    fn track(keeper: &Keeper, dir: &Path) -> (PathBuf, Track) {
        let path = dir.join("1.dat");
        File::create_new(&path).unwrap();
        let track = keeper.track(&path).unwrap();
        (path, track)
    }

    #[test]
    fn records_are_in_the_file_in_their_order() {
        const RECORDS: u64 = 1_000_000;
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(1 << 30).unwrap();
        let (path, mut track) = track(&keeper, dir.path());
        let record =
            |n: u64| Record { time: n, kind: RecordType::Entry, depth: 1, address: n % 1_000 };

        (0..RECORDS).for_each(|n| track.push(record(n)));

        assert!(keeper.end().is_none());
        let bytes = std::fs::read(&path).unwrap();
        let (records, rest) = bytes.as_chunks::<RECORD>().0.split_at(RECORDS as usize);
        assert!(records.iter().zip(0..).all(|(found, n)| *found == record(n).to_bytes()));
        assert!(rest.iter().all(|unused| *unused == [0; RECORD]));
    }

    #[test]
    fn at_the_limit_records_are_held() {
        // Windows of 256, 512 and 1,024 KiB.
        const ROOM: usize = (1792 << 10) / RECORD;
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(3 << 20).unwrap();
        let (_, mut track) = track(&keeper, dir.path());

        (0..ROOM + 10).for_each(|_| track.push(RECORD_1));

        assert_eq!(track.resume(), None);
        assert_eq!(track.held(), [RECORD_1; 10]);
        assert!(keeper.end().unwrap().source.is_none());
    }

    #[test]
    fn tracks_that_are_made_at_once_have_no_more_than_the_limit() {
        const LIMIT: u64 = 24 << 20;
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(LIMIT).unwrap();
        thread::scope(|scope| {
            for thread in 0..8 {
                let (keeper, dir) = (&keeper, dir.path());
                scope.spawn(move || {
                    for number in 0..8 {
                        let path = dir.join(format!("{thread}{number}.dat"));
                        File::create_new(&path).unwrap();
                        keeper.track(&path).unwrap();
                    }
                });
            }
        });

        keeper.end();
        let files = std::fs::read_dir(dir.path()).unwrap().flatten();
        assert!(files.map(|file| file.metadata().unwrap().len()).sum::<u64>() <= LIMIT);
    }

    #[test]
    fn a_file_in_the_place_of_a_tracks_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(1 << 30).unwrap();
        let (path, mut track) = track(&keeper, dir.path());
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::write(&path, "precious").unwrap();

        // The first two windows are mapped already.
        (0..=(768 << 10) / RECORD).for_each(|_| track.push(RECORD_1));

        assert_eq!(track.held(), [RECORD_1]);
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(keeper.end().unwrap().source.unwrap().to_string().contains("another file"));
    }
}
