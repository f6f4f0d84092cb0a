// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Function traces: entries and exits of a guest's functions, with times of the host's clock.

use crate::clock::host::HostCounter;
use crate::error::{Error, Result};
use crate::event::{Bound, Encoded, EntryRef, EventKind, EventRef, Fields, Lost};
use crate::function::{EventNames, Function, FunctionFields, FunctionName};
use crate::inputs::ctf::Session;
use crate::inputs::input::{Input, Time, UNPLACED, nanoseconds};
use crate::inputs::names::Names;
use crate::source::Source;
use hypertrace_abi::ring::Losses;
use hypertrace_format::error::Warning;
use hypertrace_format::uuid;
use hypertrace_functions::clock::Clock;
use hypertrace_functions::read::{Records, Trace};
use hypertrace_functions::record::{self, Record};
use hypertrace_functions::symbols;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Maximum total size in bytes of the fields of functions that the tasks of a trace keep for further records.
/// Each task gets an equal share.
const MAX_KEPT: usize = 32 << 20;

/// Size of a function's fields without its names, in bytes.
const FIELDS: usize = 256;

/// Bound on the error of a time in nanoseconds. The error comes from rounding, because records have whole
/// nanoseconds.
const BOUND_NS: u64 = 1;

/// Name of the event at which a function begins. Compiled-in functions use the same name.
pub const ENTRY: &str = "function_entry";
/// Name of the event at which a function ends.
pub const EXIT: &str = "function_exit";
/// Name of the field with a function's symbol. The field is present only if the symbol differs from the
/// function's name.
pub const SYMBOL: &str = "symbol";
/// Names of all fields of a function trace's events.
pub const FUNCTION_FIELDS: [&str; 4] = ["name", "address", "depth", SYMBOL];

/// A function trace: a directory from hypertrace's plugin, and the relation between the directory's times and
/// the host's counter.
#[derive(Debug)]
pub struct FunctionTrace {
    trace: Trace,
    clock: Clock,
    /// Counter of the host, which may have the anchor of another recording.
    counter: HostCounter,
    /// Index of the session on whose clock the trace is.
    session: Option<usize>,
}

impl FunctionTrace {
    /// Opens a directory. The trace's counter has the trace's own anchor at first.
    ///
    /// # Errors
    /// If `path` is not a directory from the plugin, a file in it is damaged, or nothing relates the
    /// directory's times to the host's counter.
    pub fn open(path: &Path) -> Result<FunctionTrace> {
        let trace = Trace::open(path).map_err(Error::Functions)?;
        let Some(anchor) = trace.anchor() else {
            let why = "no hypertrace.json, which relates the trace's times to the host's clock: record with \
                       hypertrace's plugin";
            return Err(Error::NotASession { path: path.to_owned(), why: why.into() });
        };
        let boot = anchor.boot_id.as_deref().and_then(uuid::parse);
        let counter = HostCounter::new(boot, anchor.counter, anchor.unix_ns, anchor.frequency);
        Ok(FunctionTrace { clock: anchor.clock(), counter, session: None, trace })
    }

    /// Adds names of functions, which take precedence over the names in the directory.
    ///
    /// # Errors
    /// If the file has no names of functions.
    pub fn add_symbols(&mut self, source: &symbols::Source) -> Result<()> {
        self.trace.add_symbols(source).map_err(Error::Functions)
    }

    /// Puts the trace on the clock of the first session in `sessions` that is from the same boot of the same
    /// machine. If there are no sessions, puts the trace on the clock of another function trace.
    ///
    /// # Errors
    /// If no session is from this boot, or the other function trace is from another boot.
    pub fn place(&mut self, sessions: &[&Session], other: Option<&FunctionTrace>) -> Result<()> {
        let is_same = |session: &&Session| session.counter().is_same(&self.counter);
        let refused = |other: &Path| {
            let path = self.trace.path().to_owned();
            Err(Error::AnotherHost { path, other: other.to_owned() })
        };
        if let Some(number) = sessions.iter().position(is_same) {
            self.session = Some(number);
            self.counter = sessions[number].counter();
        } else if let Some(first) = sessions.first() {
            return refused(first.dir());
        } else if let Some(other) = other {
            if !other.counter.is_same(&self.counter) {
                return refused(other.trace.path());
            }
            self.counter = other.counter;
        }
        Ok(())
    }

    /// Returns the faults of the directory that did not prevent its opening.
    pub fn warnings(&self) -> impl Iterator<Item = Warning> {
        self.trace.warnings().iter().cloned()
    }

    /// Returns the directory's contents.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the index of the session on whose clock the trace is.
    pub(crate) fn session(&self) -> Option<usize> {
        self.session
    }

    /// Returns the last part of the directory's path.
    pub(crate) fn name(&self) -> String {
        let path = self.trace.path();
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Returns the Unix time of the directory's time 0, in nanoseconds.
    pub fn start_unix_ns(&self) -> i64 {
        nanoseconds(self.counter.unix(self.clock.counter(0).0))
    }

    /// Converts a Unix time in nanoseconds to a time of the directory in nanoseconds. All times before the
    /// directory's beginning become 0. If an event is before an exit, the event's converted time is not after
    /// the exit's time.
    pub fn time_at(&self, unix_ns: i64) -> u64 {
        self.clock.time(self.counter.raw(unix_ns))
    }
}

/// The records of a task.
#[derive(Debug)]
struct TaskInput<'a> {
    functions: &'a FunctionTrace,
    records: Records,
    source: Arc<Source>,
    names: Arc<EventNames>,
    /// Time of the record that was read last.
    time: Time,
    /// Damage of the records, which the reader reports after all records.
    damage: Option<Warning>,
    record: Option<Record>,
    /// Index of each kept function in `kept`, by address.
    known: HashMap<u64, usize>,
    kept: Vec<Function>,
    /// Room that is left in `kept`, in bytes.
    room: usize,
}

/// Returns an input for each task of a trace. `is_one` says whether this is the timeline's only function
/// trace.
///
/// # Errors
/// If the records of a task cannot be opened.
pub(crate) fn inputs<'a>(
    session: usize,
    functions: &'a FunctionTrace,
    is_one: bool,
    names: &mut Names,
) -> Result<Vec<Box<dyn Input + 'a>>> {
    let mut prefix = names.prefix(session).to_owned();
    prefix.push_str("functions/");
    // The name is added only if the trace has a session. Without a session, the prefix already has the
    // trace's name.
    if !is_one && functions.session.is_some() {
        prefix.push_str(&functions.name());
        prefix.push(':');
    }
    let events = Arc::new(EventNames {
        entry: ENTRY.into(),
        exit: EXIT.into(),
        name: "name".into(),
        address: "address".into(),
        depth: "depth".into(),
        symbol: SYMBOL.into(),
    });
    let mut input = |task: &hypertrace_functions::Task| {
        let source = match &*task.name {
            "" => format!("{prefix}{}", task.tid),
            name => format!("{prefix}{name}"),
        };
        Ok(Box::new(TaskInput {
            functions,
            records: functions.trace.records(task.tid).map_err(Error::Functions)?,
            source: names.add(session, None, source),
            names: events.clone(),
            time: Time::MIN,
            damage: None,
            record: None,
            known: HashMap::new(),
            kept: Vec::new(),
            room: MAX_KEPT / functions.trace.tasks().len(),
        }) as Box<dyn Input>)
    };
    functions.trace.tasks().iter().map(&mut input).collect()
}

impl Input for TaskInput<'_> {
    fn advance(&mut self) -> Result<Option<Time>> {
        if self.record.is_none() {
            self.record = self.next()?;
            let Some(record) = &self.record else { return Ok(None) };
            let (first, last) = self.functions.clock.counter(record.time);
            // An entry gets the first counter value of its nanosecond, and an exit gets the last counter
            // value of its nanosecond, so that events of the same nanosecond are within the function.
            let counter = if record.kind == record::RecordType::Exit { last } else { first };
            self.time = self.time.max(self.functions.counter.unix(counter)).min(UNPLACED - 1);
        }
        Ok(Some(self.time))
    }

    fn take<'s>(&'s mut self, _: &'s mut Names) -> Option<EntryRef<'s>> {
        let record = self.record.take()?;
        let ts_ns = nanoseconds(self.time);
        let name = match record.kind {
            record::RecordType::Entry => &self.names.entry,
            record::RecordType::Exit => &self.names.exit,
            _ => {
                return Some(EntryRef::Lost(Lost {
                    ts_ns: Some(ts_ns),
                    source: self.source.clone(),
                    cpu: None,
                    thread: None,
                    trace: 0,
                    events: record.address,
                    causes: Losses { full: record.address, ..Losses::default() },
                }));
            }
        };
        let index = match self.known.get(&record.address) {
            Some(index) => *index,
            None => {
                let function = function(self.functions, record.address);
                let bytes = bytes(&function);
                if self.room < bytes {
                    self.kept.clear();
                    self.known.clear();
                    self.room = MAX_KEPT / self.functions.trace.tasks().len();
                }
                self.room = self.room.saturating_sub(bytes);
                self.kept.push(function);
                self.known.insert(record.address, self.kept.len() - 1);
                self.kept.len() - 1
            }
        };
        let function = self.kept.get(index)?;
        let fields = FunctionFields { names: &self.names, function, depth: record.depth.into() };
        Some(EntryRef::Event(EventRef {
            ts_ns,
            ticks: None,
            source: &self.source,
            name,
            fields: Fields(Encoded::Function(fields)),
            flags: 0,
            kind: EventKind::Function,
            reference: None,
            thread: None,
            function: None,
            reading: None,
            bound: Bound::Known(Some(BOUND_NS)),
            trace: 0,
        }))
    }

    fn is_host(&self) -> bool {
        false
    }

    fn warnings(&self) -> Vec<Warning> {
        Vec::from_iter(self.damage.clone())
    }
}

impl TaskInput<'_> {
    /// Reads the next record that is shown.
    fn next(&mut self) -> Result<Option<Record>> {
        // The loop ends with the file.
        loop {
            match self.records.next() {
                Some(Ok(Record { kind: record::RecordType::Event, .. })) => {}
                Some(Ok(record)) => return Ok(Some(record)),
                // The reader reports damage after all other records.
                Some(Err(error @ hypertrace_functions::Error::Damaged { .. })) => {
                    self.damage = Some(Warning::damage(error.to_string()));
                }
                Some(Err(error)) => return Err(Error::Functions(error)),
                None => return Ok(None),
            }
        }
    }
}

fn function(functions: &FunctionTrace, address: u64) -> Function {
    let symbol = functions.trace.function(address);
    symbol.map_or(Function::Unknown(address), |symbol| Function::Named(FunctionName::of(symbol)))
}

/// Returns the memory that a function takes, in bytes.
fn bytes(function: &Function) -> usize {
    let names = match function {
        Function::Unknown(_) => 0,
        Function::Named(FunctionName { name, symbol }) => {
            name.len() + symbol.as_ref().map_or(0, String::len)
        }
    };
    names + FIELDS
}
