//! Triggers: a guest's reference points cause actions on the host's tracing.
//!
//! ```text
//! on NAME [if argN==VALUE [and argM==VALUE]..] do ACTION[, ACTION]..
//! ```
//!
//! `NAME` is the name of an event. `begin:R` and `end:R` stand for the begin and the end of a region `R`.
//! `argN` is the Nth 64-bit word of the event's fields, counted from 1. If all fields are scalars, this word
//! is the Nth field. Actions:
//!
//! | action | done |
//! |---|---|
//! | `events PATTERN on\|off` | declared events at once, the guest's in the drain's next pass |
//! | `kernel DIR on\|off` | at once: the `tracing_on` of a tracefs instance, by one system call |
//! | `snapshot` | a moment later: a flight recorder's, see [`Session::snapshot`](crate::Session::snapshot) |
//! | `call NAME` | a moment later: a callback of the VMM's |
//!
//! The session does immediate actions before the guest continues. The thread of a vCPU looks up the rules of
//! a point in one immutable table, without a lock or an allocation. The session queues and counts callbacks,
//! and the triggers' own thread calls the callbacks in order. The session switches the guest's events in the
//! order of the last requests. If the same switch is requested several times before the session does the
//! switch, the session does the switch once.

mod rule;
mod table;

pub use rule::TriggerError;

use crate::events::Pattern;
use crossbeam_queue::ArrayQueue;
use hypertrace_abi::sink::{NameSet, ReferencePoint};
use rule::{Action, Rule};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use table::{Table, Tables};

/// Maximum number of rules.
pub const MAX_RULES: usize = 256;
/// Maximum number of changes of a session's rules. Each addition and each removal of a rule is a change.
pub const MAX_CHANGES: usize = 1024;
/// Maximum number of waiting jobs. The session counts further jobs, but does not do them.
pub const MAX_QUEUED: usize = 1024;

/// Name of the callback that takes a snapshot. No rule can call this name.
pub(crate) const SNAPSHOT: &str = " snapshot";

/// A function of the VMM that a trigger calls, on the triggers' own thread.
pub type Callback = Arc<dyn Fn(&Fired) + Send + Sync>;

/// A reference point that fired a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fired {
    /// Id of the rule.
    pub rule: u32,
    /// Client that made the point.
    pub client: u32,
    /// Number that the guest gave the point.
    pub seq: u32,
    /// Ticks of the host's raw counter when the host took the point.
    pub host_time: u64,
}

#[derive(Default)]
struct Control {
    rules: Vec<Arc<Rule>>,
    /// Removed rules. A thread that looked up a rule before the rule's removal may still fire the rule.
    removed: Vec<Arc<Rule>>,
    last: u32,
    callbacks: BTreeMap<String, Callback>,
}

/// The triggers of a session.
#[derive(Default)]
pub(crate) struct Triggers {
    tables: Tables,
    control: Mutex<Control>,
    /// True if the session may still have to do an action of a fired rule.
    due: AtomicBool,
    queue: Arc<Queue>,
    worker: OnceLock<JoinHandle<()>>,
}

/// Waiting callbacks. Each entry has a callback and the point that fired the callback's rule.
struct Queue {
    jobs: ArrayQueue<(Callback, Fired)>,
    ended: AtomicBool,
    done: AtomicU64,
    dropped: AtomicU64,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            jobs: ArrayQueue::new(MAX_QUEUED),
            ended: AtomicBool::default(),
            done: AtomicU64::default(),
            dropped: AtomicU64::default(),
        }
    }
}

impl Triggers {
    /// Applies the rules to this point, on the vCPU's thread.
    #[inline(always)]
    pub fn point(&self, point: &ReferencePoint<'_>) {
        let rules = self.tables.slot(point.name_hash);
        if !rules.is_empty() {
            self.matched(rules, point);
        }
    }

    #[inline(never)]
    fn matched(&self, rules: &[Arc<Rule>], point: &ReferencePoint<'_>) {
        let named = rules.iter().filter(|rule| rule.hash == point.name_hash);
        for rule in named.filter(|rule| rule.fits(point.words)) {
            rule.fired.fetch_add(1, Relaxed);
            self.fire(rule, point);
        }
    }

    fn fire(&self, rule: &Arc<Rule>, point: &ReferencePoint<'_>) {
        let ReferencePoint { client, seq, host_time, .. } = *point;
        for action in &rule.actions {
            match action {
                Action::Events { declared, on, due, .. } => {
                    declared.iter().for_each(|event| event.set(*on));
                    due.store(host_time.max(1), Relaxed);
                    // ORDERING: pairs with the Acquire in `pass`: a pass that sees this store also sees the
                    // action's `due`.
                    self.due.store(true, Release);
                }
                Action::Kernel { tracing_on, on, .. } => {
                    let state: &[u8] = if *on { b"1" } else { b"0" };
                    if tracing_on.write_at(state, 0).is_err() {
                        rule.failed.fetch_add(1, Relaxed);
                    }
                }
                Action::Call(callback) => {
                    let fired = Fired { rule: rule.number, client, seq, host_time };
                    // `pass` wakes the worker. This thread does not wake the worker, because a wake-up takes
                    // a system call. The drop of a job frees no memory, because the table still holds the
                    // callback.
                    if self.queue.jobs.push((Arc::clone(callback), fired)).is_err() {
                        self.queue.dropped.fetch_add(1, Relaxed);
                    }
                }
            }
        }
    }

    /// If callbacks wait, wakes the triggers' thread. Switches the guest's events by `set`. The drain loop's
    /// thread calls this method at the beginning of a pass.
    pub fn pass(&self, mut set: impl FnMut(&Pattern, bool)) {
        if let Some(worker) = self.worker.get().filter(|_| !self.queue.jobs.is_empty()) {
            worker.thread().unpark();
        }
        if !self.due.load(Relaxed) || !self.due.swap(false, Acquire) {
            return;
        }
        let control = self.control();
        let mut due = Vec::new();
        for rule in control.rules.iter().chain(&control.removed) {
            for (index, action) in rule.actions.iter().enumerate() {
                if let Action::Events { pattern, on, due: time, .. } = action {
                    due.push(((time.swap(0, Relaxed), rule.number, index), pattern, *on));
                }
            }
        }
        due.retain(|((time, ..), ..)| *time != 0);
        due.sort_by_key(|(order, ..)| *order);
        for (_, pattern, on) in due {
            set(pattern, on);
            self.queue.done.fetch_add(1, Relaxed);
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a callback under a name, so that rules can call it.
    pub fn register(&self, name: &str, callback: Callback) {
        self.control().callbacks.insert(name.to_owned(), callback);
    }

    /// Adds a rule, and returns its number.
    pub fn add(&self, text: &str) -> Result<u32, TriggerError> {
        let mut control = self.control();
        if control.rules.len() >= MAX_RULES {
            return Err(TriggerError::TooMany);
        }
        // After an addition, enough changes must be left to remove every rule.
        if self.tables.len() + control.rules.len() + 2 > MAX_CHANGES {
            return Err(TriggerError::TooManyChanges);
        }
        let number = control.last + 1;
        let callback = |name: &str| control.callbacks.get(name).cloned();
        // Rules share open files, because a removed rule keeps its files until the session ends. If rules did
        // not share files, many additions and removals of rules would use up the descriptors.
        let opened = |path: &Path| {
            let mut rules = control.rules.iter().chain(&control.removed);
            rules.find_map(|rule| rule.opened(path)).cloned()
        };
        let rule = Rule::parse(text, number, callback, opened)?;
        if rule.actions.iter().any(|action| matches!(action, Action::Call(_))) {
            let queue = Arc::clone(&self.queue);
            self.worker.get_or_init(|| thread::spawn(move || queue.work()));
        }
        control.last = number;
        control.rules.push(Arc::new(rule));
        self.tables.replace(Table::new(&control.rules));
        Ok(number)
    }

    /// Removes a rule.
    pub fn remove(&self, number: u32) -> Result<(), TriggerError> {
        let mut control = self.control();
        let place = control.rules.iter().position(|rule| rule.number == number);
        let rule = control.rules.remove(place.ok_or(TriggerError::Unknown(number))?);
        self.tables.replace(Table::new(&control.rules));
        control.removed.push(rule);
        Ok(())
    }

    /// Returns the names of the events that have rules.
    pub fn names(&self) -> NameSet {
        let mut names = NameSet::EMPTY;
        self.control().rules.iter().for_each(|rule| names.set(rule.hash));
        names
    }

    /// Returns all rules with their counts, one line for each rule, and the counts of queued actions.
    pub fn list(&self) -> String {
        let mut text = String::new();
        let Queue { jobs, done, dropped, .. } = &*self.queue;
        let control = self.control();
        for rule in &control.rules {
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "{}: {} (fired {}, failed {})",
                rule.number,
                rule.text,
                rule.fired.load(Relaxed),
                rule.failed.load(Relaxed)
            );
        }
        let rules = control.rules.iter().chain(&control.removed);
        let due = rules.flat_map(|rule| &rule.actions).filter(|action| action.is_due()).count();
        let _ = writeln!(
            text,
            "queued actions: {} waiting, {} done, {} dropped",
            jobs.len() + due,
            done.load(Relaxed),
            dropped.load(Relaxed)
        );
        text
    }
}

impl Drop for Triggers {
    fn drop(&mut self) {
        self.queue.ended.store(true, Relaxed);
        if let Some(worker) = self.worker.take()
            && worker.thread().id() != thread::current().id()
        {
            worker.thread().unpark();
            let _ = worker.join();
        }
    }
}

impl Queue {
    fn work(&self) {
        loop {
            while let Some((callback, fired)) = self.jobs.pop() {
                callback(&fired);
                self.done.fetch_add(1, Relaxed);
            }
            if self.ended.load(Relaxed) {
                return;
            }
            // If another thread unparks this thread after the last pop, `park_timeout` returns at once. The
            // timeout is for sessions without a drain loop.
            thread::park_timeout(Duration::from_millis(100));
        }
    }
}
