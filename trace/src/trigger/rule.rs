//! One rule: its text, conditions, actions and counts.

use super::{Callback, MAX_CHANGES, MAX_RULES, SNAPSHOT};
use crate::drain::SnapshotError;
use crate::events::{EVENTS, Pattern, TraceEvent};
use hypertrace_abi::layout::SLOT_WORDS;
use hypertrace_abi::schema::{is_name, name_hash};
use hypertrace_format::folder::open_regular;
use rustix::fs::{CWD, OFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Error of adding or removing a rule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TriggerError {
    /// The text is no rule.
    #[error(
        "expected {expected}, found {found:?}: a rule is \"on NAME [if argN==VALUE [and ..]] do \
         ACTION[, ..]\", an action is \"events PATTERN on|off\", \"kernel DIR on|off\", \
         \"snapshot\" or \"call NAME\""
    )]
    Syntax {
        /// The expected text.
        expected: &'static str,
        /// The text that was found in place of the expected text.
        found: String,
    },
    /// A kernel instance cannot be switched.
    #[error("cannot open {}: give the folder of a tracefs instance", path.display())]
    Kernel {
        /// Path of the instance's file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// No callback of this name is registered.
    #[error("this VMM has no callback {0:?}")]
    Callback(String),
    /// Only a flight recorder takes snapshots.
    #[error(transparent)]
    NotARecorder(#[from] SnapshotError),
    /// The session has the maximum number of rules already.
    #[error("more than {MAX_RULES} rules: remove one first")]
    TooMany,
    /// The session's rules were changed too often.
    #[error(
        "a session's rules change {MAX_CHANGES} times at most, and the changes that are left can only remove rules: \
         begin another session"
    )]
    TooManyChanges,
    /// No rule has this number.
    #[error("no rule {0}")]
    Unknown(u32),
}

pub(super) enum Action {
    Events {
        declared: Box<[&'static TraceEvent]>,
        pattern: Pattern,
        on: bool,
        /// Time at which this action was fired, or 0 if no switch of the guest's events is pending.
        due: AtomicU64,
    },
    Kernel {
        path: PathBuf,
        /// The open file. All rules with this path share this file.
        tracing_on: Arc<File>,
        on: bool,
    },
    Call(Callback),
}

impl Action {
    /// Returns true if the guest's events still have to be switched.
    pub fn is_due(&self) -> bool {
        matches!(self, Action::Events { due, .. } if due.load(Relaxed) != 0)
    }
}

pub(super) struct Rule {
    pub number: u32,
    pub text: String,
    /// Hash of the event's name.
    pub hash: u32,
    /// Indexes of payload words, and their required values.
    conditions: Box<[(usize, u64)]>,
    pub actions: Box<[Action]>,
    pub fired: AtomicU64,
    /// Number of failed switches of a kernel instance.
    pub failed: AtomicU64,
}

fn syntax(expected: &'static str, found: &str) -> TriggerError {
    TriggerError::Syntax { expected, found: found.chars().take(80).collect() }
}

impl Rule {
    /// Parses a rule. `callback` finds the callback with a name, and `opened` finds a file that another rule
    /// has opened.
    pub fn parse(
        text: &str,
        number: u32,
        callback: impl Fn(&str) -> Option<Callback>,
        opened: impl Fn(&Path) -> Option<Arc<File>>,
    ) -> Result<Rule, TriggerError> {
        let text = text.trim();
        let rest = text.strip_prefix("on ").ok_or_else(|| syntax("\"on NAME\"", text))?;
        let (head, actions) =
            rest.split_once(" do ").ok_or_else(|| syntax("\"do ACTION\"", rest))?;
        let (name, conditions) = match head.split_once(" if ") {
            Some((name, conditions)) => (name.trim(), conditions.split(" and ").collect()),
            None => (head.trim(), Vec::new()),
        };
        let name = match name.split_once(':') {
            Some(("begin", region)) => format!("{region}_begin"),
            Some(("end", region)) => format!("{region}_end"),
            _ => name.to_owned(),
        };
        if !is_name(&name) {
            return Err(syntax("an event's name, begin:REGION or end:REGION", &name));
        }
        let actions =
            actions.split(',').map(|action| parse_action(action.trim(), &callback, &opened));
        Ok(Rule {
            number,
            text: text.to_owned(),
            hash: name_hash(&name),
            conditions: conditions.into_iter().map(parse_condition).collect::<Result<_, _>>()?,
            actions: actions.collect::<Result<_, _>>()?,
            fired: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        })
    }

    /// If an action of this rule has opened this path, returns the action's file.
    pub fn opened(&self, path: &Path) -> Option<&Arc<File>> {
        self.actions.iter().find_map(|action| match action {
            Action::Kernel { path: of, tracing_on, .. } if of == path => Some(tracing_on),
            _ => None,
        })
    }

    /// Returns true if the rule's conditions hold.
    #[inline]
    pub fn fits(&self, words: &[u64]) -> bool {
        self.conditions.iter().all(|(word, value)| words.get(*word) == Some(value))
    }
}

fn parse_condition(text: &str) -> Result<(usize, u64), TriggerError> {
    let wrong = || syntax("argN==VALUE with N from 1", text.trim());
    let (arg, value) = text.split_once("==").ok_or_else(wrong)?;
    let arg = arg.trim().strip_prefix("arg").and_then(|n| n.parse().ok());
    let word = arg.filter(|n| (1..=SLOT_WORDS).contains(n)).ok_or_else(wrong)?;
    let value = value.trim();
    let value = match (value.strip_prefix("0x"), value.strip_prefix('-')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(_)) => value.parse::<i64>().ok().map(|n| n as u64),
        (None, None) => value.parse().ok(),
    };
    Ok((word - 1, value.ok_or_else(wrong)?))
}

fn parse_action(
    text: &str,
    callback: &impl Fn(&str) -> Option<Callback>,
    opened: &impl Fn(&Path) -> Option<Arc<File>>,
) -> Result<Action, TriggerError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match *words.as_slice() {
        ["events", pattern, state] => {
            let pattern: Pattern =
                pattern.parse().map_err(|_| syntax("a pattern of event names", pattern))?;
            let fits = EVENTS.iter().filter(|event| pattern.matches(event.name()));
            let (declared, on, due) = (fits.collect(), switch(state)?, AtomicU64::new(0));
            Ok(Action::Events { declared, pattern, on, due })
        }
        ["kernel", instance, state] => {
            let path = Path::new(instance).join("tracing_on");
            let on = switch(state)?;
            let open =
                || open_regular(CWD, &path, OFlags::WRONLY).map(|(file, _)| Arc::new(file.into()));
            match opened(&path).map_or_else(open, Ok) {
                Ok(tracing_on) => Ok(Action::Kernel { path, tracing_on, on }),
                Err(source) => Err(TriggerError::Kernel { path, source }),
            }
        }
        ["snapshot"] => match callback(SNAPSHOT) {
            Some(callback) => Ok(Action::Call(callback)),
            None => Err(SnapshotError::NotARecorder.into()),
        },
        ["call", name] => match callback(name) {
            Some(callback) => Ok(Action::Call(callback)),
            None => Err(TriggerError::Callback(name.to_owned())),
        },
        _ => Err(syntax("an action", text)),
    }
}

fn switch(state: &str) -> Result<bool, TriggerError> {
    match state {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(syntax("on or off", other)),
    }
}
