//! Target `session`: the device with a real session. The VMM performs actions on this session. The session is
//! read afterwards.

use crate::input::Input;
use crate::meter::Meter;
use crate::op::Op;
use crate::recorder::Ambush;
use crate::rig::{Account, Rig, check_exact, check_order, header};
use crate::setup::{EVENT, HONEST, MAX_STEPS_EACH, POINT, Setup, steps};
use crate::simple::SimpleFile;
use crate::vmm::{Act, GUESTS_SNAPSHOTS, Options, Vmm};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::ring::ProducerState;
use hypertrace_abi::schema::Schema;
use hypertrace_device::{Chip, Memory};
use hypertrace_test_support::kept::{self, Event, Value};
use hypertrace_timeline::{ClockMaps, Domain, EventKind, Recording, SessionJson, SessionStat};
use hypertrace_trace::{Output, Session, Summary, limits};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;

/// Maximum size in bytes of the session's descriptions. The size does not include clocks, streams and
/// classes.
const REST_BYTES: u64 = 16 << 10;
/// Maximum size of a class in bytes, without its text.
const CLASS_BYTES: usize = 512;
/// Maximum number of bytes of declarations per byte of a class's text. A field's declaration is longer than
/// the field's text.
const TEXT_FACTOR: usize = 32;
/// Maximum number of words on disk for each word of a ring. A record without payload may need this many
/// words: the session adds an event about the record's wrong time, and a prefix about the record's unknown
/// class.
const WORD_FACTOR: u64 = 4;
/// Maximum number of words of an event of the VMM.
const HOST_EVENT_WORDS: u64 = 64;

/// Panics if a guest can make a session unreadable, remove records of the honest
/// client, or make the session larger than the bounds.
pub fn run(bytes: &[u8]) {
    let dir = TempDir::new().expect("a directory");
    let mut input = Input::new(bytes);
    let mut setup = Setup::decode(&mut input);
    let options = Options::decode(&mut input);
    if options.output == Output::Snapshots {
        setup.ring_mode = RingMode::Overwrite;
    }
    let recorded = record(dir.path(), &setup, &options, |rig, host| rig.run(&mut input, host));
    recorded.check(dir.path(), &setup, &options);
}

/// Writes a session with records of every kind to `s` of this directory.
pub fn write_sample(dir: &Path) {
    let setup = Setup::decode(&mut Input::new(&[1]));
    record(dir, &setup, &Options::plain(), |mut rig, host| {
        for n in 0..4u8 {
            let schema = Op::Schema(b"s(s:str)".to_vec(), None, None);
            let text = Op::Record(1, 0, header("s(s:str)", ticks(), 1), vec![3 | 0x63_6261 << 32]);
            let wrong = Op::Record(1, 0, header("none()", ticks(), 2), vec![1, 2]);
            let future = Op::Record(1, 0, header("s(s:str)", u64::MAX, 1), vec![0]);
            let ops = [schema, text, wrong, future, Op::Publish];
            let event = Op::Host(Act::Event(n.into()));
            let more = [Op::Honest(40 * n), event, Op::Point, Op::Legacy(0, 7)];
            let last = [Op::Lease, Op::Honest(3), Op::Pass(4)];
            ops.iter().chain(&more).chain(&last).for_each(|op| rig.apply(op, host));
        }
        rig.finish()
    });
}

/// A session, and the facts against which the target checks the session.
pub struct Recorded {
    summary: Summary,
    /// The honest client's own counts.
    pub account: Account,
    /// Number of steps that have taken words, and number of all words that were taken.
    taken: u64,
    words: u64,
    /// Number of points of client 1. Points of the 2016 interface are included.
    points: u64,
    /// Count of the VMM's events, recorded or not.
    host_events: u64,
    events: Vec<u64>,
    /// Whether events may have been off.
    pub switched: bool,
    epochs: u32,
    snapshots: Vec<PathBuf>,
    files: Vec<SimpleFile>,
}

/// Records the operations of `guest` in a session. The session's directory is `s` in this directory.
fn record(
    dir: &Path,
    setup: &Setup,
    options: &Options,
    guest: impl FnOnce(Rig<'_>, &mut dyn FnMut(&Act)) -> Account,
) -> Recorded {
    let (session, _, recorded) = begin(dir, setup, options, guest);
    let summary = session.finish().expect("nothing keeps it from being written");
    Recorded { summary, ..recorded }
}

/// Records as `record` does, but does not end the session. The function also returns the memory of the
/// session's guests.
pub fn begin(
    dir: &Path,
    setup: &Setup,
    options: &Options,
    guest: impl FnOnce(Rig<'_>, &mut dyn FnMut(&Act)) -> Account,
) -> (Session, Arc<Memory>, Recorded) {
    // Only one input runs at a time, because the switches of declared events belong to the whole process.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);

    let session = Session::create(options.config(&dir.join("s"))).expect("a session");
    let (memory, guest_memory) = setup.memory();
    let ambush = Arc::new(Ambush::default());
    let (guests, lies) = (guest_memory.clone(), ambush.clone());
    let meter = Arc::new(Meter::new(session.clone(), setup.ring_mode, guests, lies));
    let chip = Arc::new(Chip::new(memory, &setup.chip_config(), meter.clone(), ()));
    let state = ProducerState::new();
    let rig = Rig::new(chip.clone(), &guest_memory, &state, &ambush);
    let fired = Cell::new(0);
    let pass = || chip.drain_pass_by(MAX_STEPS_EACH, &steps());
    let mut vmm = Vmm::new(&session, options, dir, &fired, &pass);
    let count = || fired.set(fired.get() + meter.take_declared());
    let account = guest(rig, &mut |act| {
        count();
        vmm.act(act);
    });
    count();
    vmm.end_window();
    if options.output == Output::Snapshots {
        vmm.snapshot();
    }
    let Vmm { host_events, events, switched, epochs, snapshots, files, .. } = vmm;
    let (taken, words, points) = (meter.taken(), meter.words(), meter.points());
    let summary = Summary::default();
    let recorded = Recorded {
        summary,
        account,
        taken,
        words,
        points,
        host_events,
        events,
        switched,
        epochs,
        snapshots,
        files,
    };
    (session, guest_memory, recorded)
}

/// Contents of a session.
pub struct Read {
    events: Vec<Event>,
    /// Number of client 1's losses by cause: full, busy, overwritten.
    pub lost: [u64; 3],
    /// Number of all losses of client 1. If `session.json` no longer lists the cause of a loss, the loss is
    /// counted only here.
    pub all_lost: u64,
    /// Number of client 1's filtered events.
    pub filtered: u64,
    /// Numbers of client 1's faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Number of events of the whole session.
    records: u64,
}

/// Reads the accounts, the clocks and the events of a whole session.
pub fn read(dir: &Path) -> Read {
    let session = hypertrace_timeline::Session::open(dir).expect("a whole session");
    let stat = SessionStat::of(&session).expect("accounts");
    let maps = ClockMaps::of(&session).expect("clock maps");
    let recording = Recording::of([(session, maps)], []);
    let events = kept::events(&recording).expect("events");
    assert_eq!(events.len() as u64, stat.total.records);
    let honest = (Domain::Guest, HONEST);
    let stream = stat.streams.iter().find(|s| s.stream == Some(honest));
    let lost = stream.map_or([0; 3], |s| [s.causes.full, s.causes.busy, s.causes.overwritten]);
    let (all_lost, filtered) = stream.map_or((0, 0), |s| (s.lost, s.filtered));
    let faults = stream.map(|s| s.faults_by_kind.clone()).unwrap_or_default();
    Read { events, lost, all_lost, filtered, faults, records: stat.total.records }
}

impl Read {
    /// Returns the numbers of client 1's events, or of its points.
    fn honest(&self, text: &str, point: bool) -> Vec<u64> {
        let name = name(text);
        let ours = self.events.iter().filter(|e| e.client == Some(HONEST));
        let ours =
            ours.filter(|e| &*e.name == name && (e.kind == EventKind::ReferencePoint) == point);
        ours.map(|e| number(e).unwrap_or_else(|| panic!("torn: {e:?}"))).collect()
    }
}

impl Recorded {
    fn check(&self, dir: &Path, setup: &Setup, options: &Options) {
        let Summary { filtered, lost, .. } = self.summary;
        self.files.iter().for_each(|file| file.check(filtered, lost, options.relays));
        let dir = dir.join("s");
        let entries = std::fs::read_dir(&dir).expect("its directory").count();
        match options.output {
            Output::Nothing => assert_eq!(entries, 0),
            Output::Snapshots => {
                self.check_snapshots(options);
                assert!(entries <= self.snapshots.len() + GUESTS_SNAPSHOTS as usize);
            }
            Output::Trace => {
                let read = read(&dir);
                assert_eq!(read.records, self.summary.records);
                self.check_trace(&read, setup.ring_mode, options);
                self.check_size(&dir, options);
            }
        }
    }

    /// Checks that the snapshots contain only emitted events. The function also checks that the last snapshot
    /// contains all events that were neither overwritten nor filtered.
    fn check_snapshots(&self, options: &Options) {
        for (n, dir) in self.snapshots.iter().enumerate() {
            let read = read(dir);
            let Account { recorded, points, leases, .. } = &self.account;
            let delivered = self.delivered(&read, EVENT, false);
            check_order(recorded, &delivered);
            if options.relays == 0 {
                check_order(points, &self.delivered(&read, POINT, true));
            }
            if n + 1 == self.snapshots.len() {
                let missing = (recorded.len() - delivered.len()) as u64;
                let [.., overwritten] = read.lost;
                // `filtered` may also count points, so it is only an upper limit of the filtered events.
                assert!(overwritten <= missing + leases, "{overwritten} overwritten");
                assert!(missing <= overwritten + read.filtered, "{missing} are missing");
            }
        }
    }

    /// Checks that a trace has all records of the honest client, or says how many records are missing. A
    /// relay can write anything about other clients' points and clocks.
    fn check_trace(&self, read: &Read, mode: RingMode, options: &Options) {
        let Account { recorded, points, full, .. } = &self.account;
        let delivered = self.delivered(read, EVENT, false);
        assert_eq!(read.lost[..2], [*full, 0]);
        if options.relays > 0 {
            return check_order(recorded, &delivered);
        }
        assert!(read.faults.is_empty(), "{:?} with {options:?}", read.faults);
        let delivered_points = self.delivered(read, POINT, true);
        check_order(points, &delivered_points);
        let all = |e: &&Event| e.client == Some(HONEST) && e.kind == EventKind::ReferencePoint;
        let missing = self.points - read.events.iter().filter(all).count() as u64;
        let filtered = read.filtered.checked_sub(missing).expect("a point is missing");
        check_exact(&self.account, mode, &delivered, read.lost[2], filtered);

        let vmm = read.events.iter().filter(|e| e.client.is_none() && &*e.name == "vmm");
        assert_eq!(vmm.count(), self.events.len());
    }

    /// Returns the numbers of client 1's events, or of its points, in order. The numbers are sorted if there
    /// are several epochs, because the clocks of different epochs may overlap a little.
    pub fn delivered(&self, read: &Read, text: &str, point: bool) -> Vec<u64> {
        let mut numbers = read.honest(text, point);
        if self.epochs > 0 {
            numbers.sort_unstable();
        }
        numbers
    }

    /// Checks the session's size on disk. The descriptions, and the words that the drain took out of the
    /// rings, limit this size.
    fn check_size(&self, dir: &Path, options: &Options) {
        let len = |name| dir.join(name).metadata().expect("it is there").len();
        let (text, lines) = (len("session.json"), len("classes.jsonl"));
        let json = SessionJson::read(dir).expect("a description");
        let metadata = len("ctf/metadata");
        let texts: usize =
            json.events.iter().map(|e| CLASS_BYTES + TEXT_FACTOR * e.schema.len()).sum();
        let clocks = json.clocks.len() as u64;
        let streams = json.streams.len() as u64;
        let most = REST_BYTES + clocks * (8192 + 384 + texts as u64) + streams * 1536;
        let descriptions = text + lines + metadata;
        assert!(descriptions <= most, "{descriptions} bytes of {most}");
        assert!(text <= limits::MAX_SESSION_JSON && lines <= limits::MAX_CLASSES_BYTES);
        assert!(metadata <= limits::MAX_METADATA);

        let files = std::fs::read_dir(dir.join("ctf"))
            .expect("a folder")
            .map(|e| e.and_then(|e| e.metadata()).expect("a file").len());
        let (mut bytes, mut count) = (0, 0);
        for len in files {
            bytes += len;
            count += 1;
        }
        bytes -= metadata;
        let host = HOST_EVENT_WORDS * (self.host_events + self.epochs as u64);
        let packets = self.taken + self.host_events + 2 * count;
        let content = WORD_FACTOR * 8 * (self.words + host);
        let most = content.min(packets * options.packet_bytes as u64) + packets * 256;
        assert!(bytes <= most, "{bytes} bytes of {most} in {count} files");
    }
}

fn name(text: &str) -> &str {
    Schema::parse(text).map_or("", |schema| schema.name())
}

/// Returns the sequence number of an event of client 1 if the event is whole.
fn number(event: &Event) -> Option<u64> {
    let values: Vec<&Value> = event.fields.iter().map(|(_, value)| value).collect();
    match values[..] {
        [Value::Unsigned(n), Value::Unsigned(inverse)] if *inverse == !n => Some(*n),
        [Value::Unsigned(n), Value::Unsigned(inverse), Value::Words(rest)] => {
            let whole =
                *inverse == !n && rest.len() as u64 == n % 8 && rest.iter().all(|word| word == n);
            whole.then_some(*n)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_test_support::capability;
    use proptest::prelude::*;
    use std::process::Command;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn a_hostile_client_spoils_no_session(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            run(&bytes);
        }

        #[test]
        fn every_session_is_a_trace_for_other_readers(
            bytes in prop::collection::vec(any::<u8>(), 2000..6000),
        ) {
            let Some(program) = capability::program("babeltrace2") else { return Ok(()) };
            let dir = TempDir::new().unwrap();
            let mut input = Input::new(&bytes);
            let setup = Setup::decode(&mut input);
            let options = Options { output: Output::Trace, ..Options::decode(&mut input) };
            let recorded =
                record(dir.path(), &setup, &options, |rig, host| rig.run(&mut input, host));
            let out = Command::new(program).arg(dir.path().join("s/ctf")).output().unwrap();
            let stderr = String::from_utf8_lossy(&out.stderr);
            prop_assert!(out.status.success(), "{stderr}");
            for line in stderr.lines().filter(|line| !line.is_empty()) {
                prop_assert!(line.starts_with("WARNING: Tracer discarded"), "{line}");
            }
            let lines = out.stdout.split(|b| *b == b'\n').filter(|line| !line.is_empty());
            prop_assert_eq!(lines.count() as u64, recorded.summary.records);
            capability::used("babeltrace2");
        }
    }
}
