//! Triggers: what a guest's reference point does to the host's tracing.
//!
//! ```text
//! on NAME [if argN==VALUE [and argM==VALUE]..] do ACTION[, ACTION]..
//! ```
//!
//! `NAME` is an event's name; `begin:R` and `end:R` are those of a region `R`.
//! `argN` is the Nth 64-bit word of its fields, from 1: with scalars only, the
//! Nth field. Actions:
//!
//! | action | done |
//! |---|---|
//! | `events PATTERN on\|off` | declared events at once, the guest's a moment later |
//! | `kernel DIR on\|off` | at once: the `tracing_on` of a tracefs instance, by one system call |
//! | `call NAME` | a moment later: a callback of the VMM's |
//!
//! What is done at once is done before the guest goes on. A point is looked up
//! on the vCPU's thread in one immutable table, without a lock or an
//! allocation. What comes a moment later is queued, done in order on a thread
//! of its own, and counted.

mod rule;
mod table;

pub use rule::TriggerError;

use crate::pattern::Pattern;
use crossbeam_queue::ArrayQueue;
use hypertrace_abi::sink::ReferencePoint;
use rule::{Action, Rule};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use table::{Current, Table};

/// Rules that there can be.
pub const MAX_RULES: usize = 256;
/// Jobs that can wait; what comes while so many do is counted and not done.
pub const MAX_QUEUED: usize = 1024;

/// What a VMM does at a trigger, on the triggers' own thread.
pub type Callback = Arc<dyn Fn(&Fired) + Send + Sync>;

/// Switches the guest's events.
type SetGuestEvents = Box<dyn Fn(&Pattern, bool) + Send>;

/// A point that fired a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    /// The rule's number.
    pub rule: u32,
    /// Whose point.
    pub client: u32,
    /// The guest's number for it.
    pub seq: u32,
    /// The host's raw counter at its entry.
    pub host_time: u64,
}

/// What is done later: an action of a rule.
struct Job {
    rule: Arc<Rule>,
    action: usize,
    fired: Fired,
}

#[derive(Default)]
struct Control {
    rules: Vec<Arc<Rule>>,
    last: u32,
    callbacks: BTreeMap<String, Callback>,
}

/// The triggers of a session.
pub(crate) struct Triggers {
    table: Current,
    control: Mutex<Control>,
    queue: Arc<Queue>,
    worker: OnceLock<JoinHandle<()>>,
}

struct Queue {
    jobs: ArrayQueue<Job>,
    ended: AtomicBool,
    done: AtomicU64,
    dropped: AtomicU64,
}

impl Default for Triggers {
    fn default() -> Self {
        Triggers {
            table: Current::default(),
            control: Mutex::default(),
            queue: Arc::new(Queue {
                jobs: ArrayQueue::new(MAX_QUEUED),
                ended: AtomicBool::new(false),
                done: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
            }),
            worker: OnceLock::new(),
        }
    }
}

impl Triggers {
    /// On the vCPU's thread: does what the rules say of this point.
    /// `looking` as in [`Current::with`].
    #[inline(always)]
    pub fn point(&self, point: &ReferencePoint<'_>, looking: Option<&AtomicU32>) {
        self.table.with(point.name_hash, looking, |table| self.matched(table, point));
    }

    #[inline(never)]
    fn matched(&self, table: &Table, point: &ReferencePoint<'_>) {
        for rule in table.rules(point.name_hash).filter(|rule| rule.fits(point.words)) {
            rule.fired.fetch_add(1, Relaxed);
            self.fire(rule, point);
        }
    }

    fn fire(&self, rule: &Arc<Rule>, point: &ReferencePoint<'_>) {
        let ReferencePoint { client, seq, host_time, .. } = *point;
        for (index, action) in rule.actions.iter().enumerate() {
            action.at_once(&rule.failed);
            if !action.is_queued() {
                continue;
            }
            let fired = Fired { rule: rule.number, client, seq, host_time };
            let job = Job { rule: Arc::clone(rule), action: index, fired };
            match self.queue.jobs.push(job) {
                Ok(()) => self.worker.get().map(|worker| worker.thread().unpark()).unwrap_or(()),
                // Dropping a job frees nothing: the table holds the rule.
                Err(_) => drop(self.queue.dropped.fetch_add(1, Relaxed)),
            }
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name that rules can call.
    pub fn register(&self, name: &str, callback: Callback) {
        self.control().callbacks.insert(name.to_owned(), callback);
    }

    /// Adds a rule; gives its number. `words` are those of all threads that
    /// look.
    pub fn add<'w>(
        &self,
        text: &str,
        words: impl Iterator<Item = &'w AtomicU32>,
        set_guest_events: impl FnOnce() -> SetGuestEvents,
    ) -> Result<u32, TriggerError> {
        let mut control = self.control();
        if control.rules.len() >= MAX_RULES {
            return Err(TriggerError::TooMany);
        }
        let number = control.last + 1;
        let rule = Rule::parse(text, number, |name| control.callbacks.get(name).cloned())?;
        if rule.actions.iter().any(Action::is_queued) {
            self.start(set_guest_events());
        }
        control.last = number;
        control.rules.push(Arc::new(rule));
        self.table.replace(Some(Table::new(&control.rules)), words);
        Ok(number)
    }

    /// Removes a rule.
    pub fn remove<'w>(
        &self,
        number: u32,
        words: impl Iterator<Item = &'w AtomicU32>,
    ) -> Result<(), TriggerError> {
        let mut control = self.control();
        let before = control.rules.len();
        control.rules.retain(|rule| rule.number != number);
        if control.rules.len() == before {
            return Err(TriggerError::Unknown(number));
        }
        let table = (!control.rules.is_empty()).then(|| Table::new(&control.rules));
        self.table.replace(table, words);
        Ok(())
    }

    /// All rules and what became of them, a line each.
    pub fn list(&self) -> String {
        let mut text = String::new();
        let Queue { jobs, done, dropped, .. } = &*self.queue;
        for rule in &self.control().rules {
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
        let _ = writeln!(
            text,
            "queued actions: {} waiting, {} done, {} dropped",
            jobs.len(),
            done.load(Relaxed),
            dropped.load(Relaxed)
        );
        text
    }

    /// Starts the thread for what is queued, if it is not there.
    fn start(&self, set_guest_events: SetGuestEvents) {
        self.worker.get_or_init(|| {
            let queue = Arc::clone(&self.queue);
            thread::spawn(move || queue.work(&set_guest_events))
        });
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
    fn work(&self, set_guest_events: &SetGuestEvents) {
        loop {
            while let Some(Job { rule, action, fired }) = self.jobs.pop() {
                match &rule.actions[action] {
                    Action::Events { pattern, on, .. } => set_guest_events(pattern, *on),
                    Action::Call { callback, .. } => callback(&fired),
                    Action::Kernel { .. } => {}
                }
                self.done.fetch_add(1, Relaxed);
            }
            if self.ended.load(Relaxed) {
                return;
            }
            // An unpark between the look and this is not lost; the time is
            // for a push whose thread saw no worker yet.
            thread::park_timeout(Duration::from_millis(100));
        }
    }
}
