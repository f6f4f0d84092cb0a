//! Actions of a VMM on its session while guests trace. The VMM switches events, emits its own events, begins
//! epochs, adds triggers, takes snapshots and switches its file of declared events.

use crate::input::Input;
use crate::setup::MAX_PASSES;
use crate::simple::SimpleFile;
use crate::trace;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::Emit;
use hypertrace_trace::control::set_declared;
use hypertrace_trace::{Output, Session, SessionConfig, SnapshotError, SnapshotLimit};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of snapshots that a guest may take.
pub const GUESTS_SNAPSHOTS: u32 = 2;
/// Maximum number of snapshots, and maximum number of files, that the VMM makes in an input. The number is
/// small, because a snapshot or a file costs more time than all the rest.
const MAX_FILES: usize = 4;

/// Patterns of event names.
const PATTERNS: [&str; 12] = [
    "honest",
    "honest",
    "honest*",
    "*",
    "*",
    "e",
    "m*",
    "guest_hypertrace",
    "guest_hypertrace",
    "fuzz_*",
    "*_*t",
    "?",
];

/// Rules of triggers.
const RULES: [&str; 10] = [
    "on honest_point do snapshot",
    "on e do snapshot",
    "on honest_point do events honest off",
    "on honest_point if arg1==3 do events * on, snapshot",
    "on honest_point do events honest_point off",
    "on e if arg1==0 and arg2==1 do events guest_hypertrace on, events m* off",
    "on tick do events * off",
    "on begin:s do events * on",
    "on a do events fuzz_* off",
    "on nothing do call nobody",
];

/// Action of the VMM.
#[derive(Clone, Debug)]
pub enum Act {
    /// Emits an undeclared event.
    Event(u64),
    /// Emits a declared event.
    Pair(u64, u64),
    /// Emits a declared event with a text.
    Text(u32, Vec<u8>),
    /// Switches the events that match a pattern on or off.
    Events(&'static str, bool),
    /// Drains everything and begins a new epoch.
    Epoch,
    /// Adds a trigger.
    Trigger(&'static str),
    /// Removes a trigger.
    Untrigger(u32),
    /// Takes a snapshot.
    Snapshot,
    /// Switches the file of declared events.
    File(bool),
    /// Starts another file of declared events.
    SetFile,
    /// Drains the host's rings.
    Flush,
}

impl Act {
    /// Decodes the next action from any bytes.
    pub fn decode(input: &mut Input<'_>) -> Act {
        match input.below(20) {
            0..=2 => Act::Event(input.value()),
            3 | 4 => Act::Pair(input.value(), input.value()),
            5 => Act::Text(input.u32(), input.bytes(80)),
            6..=10 => Act::Events(input.pick(&PATTERNS), input.one_in(2)),
            11 => Act::Epoch,
            12 | 13 => Act::Trigger(input.pick(&RULES)),
            14 => Act::Untrigger(u32::from(input.u8() % 8)),
            15 | 16 => Act::Snapshot,
            17 => Act::File(input.one_in(2)),
            18 => Act::SetFile,
            _ => Act::Flush,
        }
    }
}

/// Configuration of the session.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Output of the session.
    pub output: Output,
    /// Number of clients that relay points of other clients. The number is 0, or 1 if the hostile client is a
    /// relay.
    pub relays: u32,
    /// Whether guests timestamp with the host's own counter.
    pub same_counter: bool,
    /// Size of a packet in bytes.
    pub packet_bytes: usize,
    /// Maximum number of stream files that are open at the same time.
    pub open_files: usize,
    /// Whether guests are programs of this host. Programs of the host have no epochs.
    pub programs: bool,
}

impl Options {
    /// Decodes a configuration from any bytes.
    pub fn decode(input: &mut Input<'_>) -> Options {
        let bits = input.u8();
        let output = match bits & 7 {
            0 => Output::Nothing,
            1 | 2 => Output::Snapshots,
            _ => Output::Trace,
        };
        Options {
            output,
            relays: u32::from(bits & 24 == 24),
            same_counter: bits & 32 != 0,
            packet_bytes: if bits & 64 == 0 { 1 << 14 } else { 1 << 16 },
            open_files: if bits & 128 == 0 { 64 } else { 1 },
            programs: false,
        }
    }

    /// Returns the configuration of an ordinary session that writes a trace.
    pub fn plain() -> Options {
        Options::decode(&mut Input::new(&[3]))
    }

    /// Returns the session's configuration.
    pub fn config(&self, dir: &Path) -> SessionConfig {
        SessionConfig::new(dir).with(|config| {
            config.file_bytes = 1 << 16;
            config.packet_bytes = self.packet_bytes;
            config.open_files = self.open_files;
            config.host_rings = 1;
            config.host_ring_bytes = 1 << 16;
            config.relays = self.relays;
            config.same_counter = self.same_counter;
            config.output = self.output;
            config.guests_snapshots =
                SnapshotLimit { most: GUESTS_SNAPSHOTS, interval: Duration::ZERO };
        })
    }
}

/// A VMM, and its own counts.
pub struct Vmm<'a> {
    session: &'a Session,
    /// Function that makes a pass of the drain loop, and returns whether there is more to drain.
    pass: &'a dyn Fn() -> bool,
    /// Folder for files of declared events.
    dir: &'a Path,
    /// Number of declared events that were on and fired, including points.
    fired: &'a Cell<u64>,
    options: Options,
    /// Count of the VMM's events, recorded or not.
    pub host_events: u64,
    /// Sequence numbers of the recorded events that are not declared events.
    pub events: Vec<u64>,
    /// Count of the VMM's events of any kind that found no room.
    pub full: u64,
    /// Whether events may have been off.
    pub switched: bool,
    /// Number of epochs after the first.
    pub epochs: u32,
    /// Snapshots that the owner took.
    pub snapshots: Vec<PathBuf>,
    /// Files of declared events.
    pub files: Vec<SimpleFile>,
    is_file_on: bool,
    asked: usize,
}

impl<'a> Vmm<'a> {
    /// Makes a VMM for a new session.
    pub fn new(
        session: &'a Session,
        options: &Options,
        dir: &'a Path,
        fired: &'a Cell<u64>,
        pass: &'a dyn Fn() -> bool,
    ) -> Vmm<'a> {
        // The switches of declared events belong to the process.
        set_declared(&"*".parse().expect("a pattern"), true);
        set_declared(&"guest_hypertrace".parse().expect("a pattern"), false);
        session.attach("fuzz");
        Vmm {
            session,
            pass,
            dir,
            fired,
            options: *options,
            host_events: 0,
            events: Vec::new(),
            full: 0,
            switched: false,
            epochs: 0,
            snapshots: Vec::new(),
            files: Vec::new(),
            is_file_on: false,
            asked: 0,
        }
    }

    /// Performs an action.
    pub fn act(&mut self, act: &Act) {
        self.host_events += 1;
        match act {
            Act::Event(value) => match self.session.emit(event_type!("vmm", value = *value)) {
                Emit::Recorded => self.events.push(*value),
                Emit::Full => self.full += 1,
                other => panic!("{other:?}: it has a ring"),
            },
            Act::Pair(a, b) => {
                self.fire(trace::fuzz_pair::EVENT.on());
                trace::fuzz_pair(*a, *b);
            }
            Act::Text(n, text) => {
                self.fire(trace::fuzz_text::EVENT.on());
                trace::fuzz_text(*n, text);
            }
            Act::Events(pattern, on) => {
                self.switched = true;
                let pattern = pattern.parse().expect("a pattern");
                self.session.set_events(&pattern, *on).expect("few rules");
            }
            Act::Epoch if self.options.programs => {}
            Act::Epoch => {
                self.drain();
                self.epochs += 1;
                self.session.begin_epoch(self.epochs);
            }
            // The session may refuse a rule: the number of triggers is limited, and a rule may name a
            // callback that does not exist.
            Act::Trigger(rule) => {
                self.switched |= self.session.add_trigger(rule).is_ok();
            }
            Act::Untrigger(number) => drop(self.session.remove_trigger(*number)),
            Act::Snapshot => {
                self.asked += 1;
                if self.asked <= MAX_FILES {
                    self.snapshot();
                }
            }
            Act::File(on) => {
                self.drain();
                let state = if *on { "on" } else { "off" };
                let done = self.session.execute(&format!("trace-file {state}"));
                assert_eq!(done.is_ok(), !self.files.is_empty(), "{done:?}");
                self.end_window();
                self.is_file_on = *on && !self.files.is_empty();
            }
            Act::SetFile if self.files.len() < MAX_FILES => self.set_file(),
            Act::SetFile => {}
            Act::Flush => drop(self.session.execute("trace-file flush").expect("a command")),
        }
    }

    fn fire(&self, on: u32) {
        self.fired.set(self.fired.get() + u64::from(on != 0));
    }

    /// Makes passes until everything is drained.
    fn drain(&self) {
        let mut passes = 0;
        while (self.pass)() {
            passes += 1;
            assert!(passes < MAX_PASSES, "the drain does not end");
        }
    }

    /// Takes a snapshot while the drain loop continues.
    pub fn snapshot(&mut self) {
        let session = self.session.clone();
        let asks = std::thread::spawn(move || session.snapshot());
        while !asks.is_finished() {
            (self.pass)();
            // During the pause, the thread that takes the snapshot can lock the engine's mutex. A mutex is
            // not fair, so without the pause, the thread might wait for seconds.
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        match asks.join().expect("it does not panic") {
            Ok(dir) => self.snapshots.push(dir),
            Err(SnapshotError::NotARecorder) => assert_ne!(self.options.output, Output::Snapshots),
            Err(why) => panic!("{why}"),
        }
    }

    fn set_file(&mut self) {
        // A point may still wait for its schema, and then the events after it wait too. The drain writes
        // these events to the last file; otherwise they would go to the new file.
        self.drain();
        let path = self.dir.join(format!("file-{}", self.files.len()));
        let set = self.session.set_simple_file(&path);
        assert_eq!(set.is_ok(), self.options.output != Output::Snapshots, "{set:?}");
        self.end_window();
        if set.is_ok() {
            self.is_file_on = true;
            self.files.push(SimpleFile { path, fired: 0 });
        }
    }

    /// Counts the events that fired until now for the last file, if the file was on.
    pub fn end_window(&mut self) {
        let fired = self.fired.take();
        if let Some(file) = self.files.last_mut().filter(|_| self.is_file_on) {
            file.fired += fired;
        }
    }
}
