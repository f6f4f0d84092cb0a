//! The `simple` backend with a file that fails or is slow: a full disk, and pipes. Drops are recorded, and
//! neither the session nor the VMM waits.

use crate::alone;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::MutexGuard;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::namespace::Mount;
use hypertrace_tests::simpletrace::{self, Event};
use hypertrace_tests::{trace, wait_until};
use hypertrace_trace::control::set_declared;
use tempfile::TempDir;

/// Number of events of a pass. A ring holds this many events.
const BURST: u64 = 200;
const TEXT: [u8; 1024] = [b'x'; 1024];

/// VMM with one thread, which emits `test_text(n, 1024 bytes)`.
struct Vmm {
    host: Host,
    emitted: u64,
    _alone: MutexGuard<'static, ()>,
}

impl Vmm {
    fn new() -> Vmm {
        let _alone = alone();
        let host = Host::new(geometry(1));
        set_declared(&"*".parse().unwrap(), false);
        set_declared(&"test_text".parse().unwrap(), true);
        host.session.attach("test");
        Vmm { host, emitted: 0, _alone }
    }

    /// Emits and drains `count` times.
    fn bursts(&mut self, count: u64) {
        for _ in 0..count {
            for n in self.emitted..self.emitted + BURST {
                trace::test_text(n as u32, TEXT);
            }
            self.emitted += BURST;
            self.host.chip.drain_all();
        }
    }

    fn info(&self) -> String {
        self.host.session.execute("info trace").unwrap()
    }
}

fn number(event: &Event) -> Option<u64> {
    Some(event.args[0].number())
}

#[test]
fn on_a_full_disk_the_file_is_valid_and_later_has_the_number_of_drops() {
    let Some(mount) = Mount::new("tmpfs", "size=16m") else { return };
    let (file, ballast) = (mount.path().join("trace"), mount.path().join("ballast"));
    fs::write(&ballast, vec![0; 15 << 20]).unwrap();
    let mut vmm = Vmm::new();
    vmm.host.session.set_simple_file(&file).unwrap();

    vmm.bursts(10);
    // The disk becomes full in the middle of a record.
    let Some(read) = simpletrace::read(&file) else { return };
    assert!(read.account(read.records.len() as u64, number) > 900);
    // The VMM emits more events than the backend can hold in memory.
    vmm.bursts(60);
    let full = simpletrace::read(&file).unwrap();
    assert_eq!(full.dropped(), 0, "there is no room for that, too");
    assert!(vmm.info().contains(&format!("{} on", file.display())));
    fs::remove_file(&ballast).unwrap();
    vmm.bursts(1);
    let emitted = vmm.emitted;
    let recorded = vmm.host.finish();

    let read = simpletrace::read(&file).unwrap();
    let found = read.account(emitted, number);
    assert!(read.dropped() > 0);
    assert_eq!(found + read.dropped(), emitted);
    assert_eq!((recorded.summary.host_events, recorded.summary.lost), (emitted, 0));
}

#[test]
fn drops_of_a_full_disk_are_recorded_in_the_next_file() {
    let Some(mount) = Mount::new("tmpfs", "size=1m") else { return };
    let (one, other) = (mount.path().join("trace"), tempfile::tempdir().unwrap());
    let other = other.path().join("trace");
    let mut vmm = Vmm::new();
    vmm.host.session.set_simple_file(&one).unwrap();
    vmm.bursts(10);
    vmm.host.session.set_simple_file(&other).unwrap();
    vmm.bursts(1);
    let emitted = vmm.emitted;
    vmm.host.finish();

    let Some(read) = simpletrace::read_all(&[one, other]) else { return };
    assert!(read.dropped() > 0);
    assert_eq!(read.account(emitted, number) + read.dropped(), emitted);
}

/// Pipe with a reader.
struct Pipe {
    path: PathBuf,
    copy: PathBuf,
    reader: JoinHandle<()>,
    _dir: TempDir,
}

impl Pipe {
    /// Starts a reader that reads pieces of `bytes`, pauses after each piece, and stops at the end or after
    /// `most` bytes.
    fn new(bytes: usize, pause: Duration, most: usize) -> Pipe {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("pipe"), dir.path().join("copy"));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (from, to) = (path.clone(), copy.clone());
        let reader = thread::spawn(move || {
            let (mut from, mut to) = (File::open(from).unwrap(), File::create(to).unwrap());
            let (mut piece, mut total) = (vec![0; bytes], 0);
            while total < most {
                match from.read(&mut piece).unwrap() {
                    0 => return,
                    n => to.write_all(&piece[..n]).unwrap(),
                }
                total += bytes;
                thread::sleep(pause);
            }
        });
        Pipe { path, copy, reader, _dir: dir }
    }

    /// Waits until the pipe has a reader, and makes the VMM write to the pipe.
    fn connect(&self, vmm: &Vmm) {
        wait_until("a reader", || vmm.host.session.set_simple_file(&self.path).is_ok());
    }

    fn end(self) -> (PathBuf, TempDir) {
        self.reader.join().unwrap();
        (self.copy, self._dir)
    }
}

#[test]
fn a_pipes_slow_reader_gets_some_events_and_the_number_of_drops() {
    let mut vmm = Vmm::new();
    let pipe = Pipe::new(16 << 10, Duration::from_millis(2), usize::MAX);
    pipe.connect(&vmm);
    let begun = Instant::now();
    vmm.bursts(100);
    let emitting = begun.elapsed();
    let emitted = vmm.emitted;
    let recorded = vmm.host.finish();

    // The slow reader cost the session no event.
    assert_eq!((recorded.summary.host_events, recorded.summary.lost), (emitted, 0));
    println!("emitted in {emitting:?}");
    let (copy, _dir) = pipe.end();
    let Some(read) = simpletrace::read(&copy) else { return };
    assert!(read.dropped() > 0);
    assert_eq!(read.account(emitted, number) + read.dropped(), emitted);
}

#[test]
fn a_pipes_reader_that_stops_delays_nothing() {
    let mut vmm = Vmm::new();
    let pipe = Pipe::new(4 << 10, Duration::from_secs(20), usize::MAX);
    pipe.connect(&vmm);
    let begun = Instant::now();
    vmm.bursts(60);
    assert!(vmm.info().contains("bytes waiting"));
    let recorded = vmm.host.finish();

    assert_eq!((recorded.summary.host_events, recorded.summary.lost), (60 * BURST, 0));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn the_end_of_a_pipes_reader_is_reported_once() {
    let mut vmm = Vmm::new();
    let pipe = Pipe::new(4 << 10, Duration::ZERO, 8 << 10);
    pipe.connect(&vmm);
    vmm.bursts(1);
    let (copy, _dir) = pipe.end();
    vmm.bursts(60);
    let info = vmm.info();
    let recorded = vmm.host.finish();

    assert!(fs::metadata(copy).unwrap().len() > 0);
    assert!(!info.contains(" 0 dropped"), "{info}");
    assert_eq!((recorded.summary.host_events, recorded.summary.lost), (61 * BURST, 0));
    assert!(recorded.summary.write_failures > 0);
}

#[test]
fn an_endless_device_takes_everything() {
    let mut vmm = Vmm::new();
    vmm.host.session.set_simple_file(Path::new("/dev/null")).unwrap();
    vmm.bursts(10);
    let info = vmm.info();
    vmm.host.finish();
    assert!(
        info.contains(&format!("{} records, 0 dropped, 0 bytes waiting", 10 * BURST)),
        "{info}"
    );
}
