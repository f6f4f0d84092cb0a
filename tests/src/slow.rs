//! Slow destinations for a trace: readers of a pipe, or of a small disk, with a bounded rate.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::packets;

/// Number of bytes of a read.
const PIECE: usize = 64 << 10;

/// Throttle that lets bytes pass at a bounded rate. Once the throttle is opened, the rate has no bound.
#[derive(Clone, Debug)]
pub struct Throttle {
    bytes_per_second: u64,
    open: Arc<AtomicBool>,
    due: Instant,
}

impl Throttle {
    /// Makes a throttle of this many bytes per second.
    pub fn new(bytes_per_second: u64) -> Throttle {
        Throttle { bytes_per_second, open: Arc::default(), due: Instant::now() }
    }

    /// Lets everything pass from now on, in all clones.
    pub fn open(&self) {
        self.open.store(true, Relaxed);
    }

    /// Waits until this many bytes may pass.
    pub fn pass(&mut self, bytes: u64) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        // The throttle does not save up time in which no bytes pass.
        self.due = self.due.max(Instant::now()) + takes;
        while !self.open.load(Relaxed) && Instant::now() < self.due {
            thread::sleep((self.due - Instant::now()).min(Duration::from_millis(20)));
        }
    }
}

/// Copies everything at the throttle's rate.
///
/// # Errors
/// If the bytes cannot be read or written.
pub fn copy(mut from: impl Read, mut to: impl Write, mut throttle: Throttle) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            n => to.write_all(&piece[..n])?,
        }
        throttle.pass(PIECE as u64);
    }
}

/// Thread that removes a session's finished files one after the other, and counts their records. A small disk
/// thus becomes empty slowly.
#[derive(Debug)]
pub struct Reaper {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Reaper {
    /// Starts with the session in this directory.
    pub fn start(session: &Path, throttle: Throttle) -> Reaper {
        let stop = Arc::<AtomicBool>::default();
        let (stopped, ctf) = (Arc::clone(&stop), session.join("ctf"));
        let run = move || {
            let (mut throttle, mut records) = (throttle, 0);
            while !stopped.load(Relaxed) {
                for file in finished(&ctf) {
                    throttle.pass(fs::metadata(&file).unwrap().blocks() * 512);
                    records += packets::records_of(&file).unwrap();
                    fs::remove_file(&file).unwrap();
                }
                thread::sleep(Duration::from_millis(2));
            }
            records
        };
        Reaper { stop, thread: thread::spawn(run) }
    }

    /// Ends the thread. Returns the number of records in the removed files.
    pub fn end(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

/// Returns the files that are followed by a later file of the same stream.
fn finished(ctf: &Path) -> Vec<PathBuf> {
    let mut streams: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for entry in fs::read_dir(ctf).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if let Some((stream, _)) = name.rsplit_once('-').filter(|_| !name.starts_with('.')) {
            streams.entry(stream.to_owned()).or_default().push(entry.path());
        }
    }
    let mut all = Vec::new();
    for mut files in streams.into_values() {
        files.sort();
        files.pop();
        all.extend(files);
    }
    all
}
