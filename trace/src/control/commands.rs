//! Control of a session while a VM runs: the events that are on, the backends, and the rings' contents. The
//! VMM's code calls the methods of [`Session`](crate::Session). Users enter commands of the monitor, which
//! have the same effect.

use super::backends;
use super::monitor::{Monitor, MonitorError};
use crate::ctf::WriteFailed;
use crate::drain::TraceState;
use crate::events::registry;
use crate::events::rings;
use crate::events::{EVENTS, Pattern};
use crate::session::engine::Engine;
use crate::session::{Matched, Session};
use hypertrace_abi::clock::ticks;
use hypertrace_format::error::error_chain;
use std::fmt::Write;
use std::io;
use std::path::Path;

impl Session {
    /// From now on, also writes declared events to a file for QEMU's simpletrace reader. The new file
    /// replaces an existing file, which must be empty or a simpletrace file. A pipe must have a reader. The
    /// session's former simpletrace file is not removed.
    ///
    /// # Errors
    /// If the file cannot be made or written, or if an existing file is neither empty nor a simpletrace file.
    pub fn set_simple_file(&self, path: &Path) -> Result<(), WriteFailed> {
        let mut engine = self.engine();
        if engine.recorder.is_some() {
            let source = std::io::Error::other("a flight recorder writes snapshots only");
            return Err(WriteFailed { action: "write", path: path.to_owned(), source });
        }
        let failed = WriteFailed::on("begin a trace in", path);
        let dir = engine.state.trace.destination.folder().map_err(failed)?.clone();
        // The events that were recorded before this call belong to the former file.
        engine.pass();
        let Engine { simple, state: TraceState { clocks, failures, .. }, .. } = &mut *engine;
        simple.set(path, &dir, &clocks.host, failures)
    }

    /// Begins to serve the [commands](Session::execute) at the control socket in the session's directory.
    ///
    /// # Errors
    /// If the socket cannot be made, or the session is written to a journal. A process in a jail without
    /// `/proc` can find the directory only through the directory's path. So call this method before the
    /// process enters such a jail.
    pub fn serve(&self) -> Result<Monitor, MonitorError> {
        self.serve_after(|| Ok(()))
    }

    /// Begins to serve like [`Session::serve`], but the serving thread first calls `before`. In `before`, the
    /// VMM installs the seccomp filter of this thread. `hypertrace_vmm::syscalls` lists the thread's system
    /// calls.
    ///
    /// # Errors
    /// The errors of [`Session::serve`], and the error of `before`.
    pub fn serve_after(
        &self,
        before: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<Monitor, MonitorError> {
        let session = self.clone();
        let folder = self
            .folder()
            .map_err(|source| MonitorError::Directory { path: self.dir().to_owned(), source })?;
        Monitor::start_in(folder.clone(), before, move |line| session.execute(line))
    }

    /// Executes a command of the monitor, and returns the reply's text.
    ///
    /// # Errors
    /// If the command fails. The error is a message about the command. The message for an unknown command
    /// lists all commands, and the message for a command with wrong arguments has the command's usage.
    pub fn execute(&self, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words.as_slice() {
            [] => Ok(String::new()),
            ["help"] => Ok(HELP.into()),
            ["info", "trace-events"] => self.info_events("*"),
            ["info", "trace-events", pattern] => self.info_events(pattern),
            ["info", "trace"] => Ok(self.info_trace()),
            ["trace-events-all"] => Ok(registry::trace_events_all()),
            ["trace-event", pattern, state] => self.trace_event(pattern, switch(state)?),
            ["snapshot"] => match self.snapshot() {
                Ok(dir) => Ok(dir.display().to_string()),
                Err(why) => Err(error_chain(&why)),
            },
            ["trace-file", "set", _, ..] => {
                let path = line.split_once("set").map_or("", |(_, path)| path.trim());
                self.set_simple_file(Path::new(path)).map_err(|e| error_chain(&e))?;
                Ok(format!("writing to {path}"))
            }
            // Without a path, this command does nothing, as in QEMU's monitor.
            ["trace-file", "set"] => Ok(String::new()),
            ["trace-file", "flush"] => {
                self.engine().pass();
                Ok(String::new())
            }
            ["trace-file", state] => self.trace_file(switch(state)?),
            ["trigger", "list"] => Ok(self.triggers()),
            ["trigger", "add", ..] => {
                let rule = line.split_once("add").map_or("", |(_, rule)| rule.trim());
                let number = self.add_trigger(rule).map_err(|e| error_chain(&e))?;
                Ok(format!("trigger {number}"))
            }
            ["trigger", "remove", number] => {
                let number = number.parse().map_err(|_| format!("{number:?} is no number"))?;
                self.remove_trigger(number).map_err(|e| error_chain(&e))?;
                Ok(String::new())
            }
            ["trace-backend", name, state] => backends::switch(name, switch(state)?),
            [name, ..] => {
                Err(usage(name).unwrap_or_else(|| format!("no command {line:?}\n{HELP}")))
            }
        }
    }

    fn trace_event(&self, pattern: &str, on: bool) -> Result<String, String> {
        let pattern: Pattern = pattern.parse().map_err(|e| error_chain(&e))?;
        let about = self.set_events(&pattern, on).map_err(|e| error_chain(&e))?;
        let state = if on { "on" } else { "off" };
        Ok(match about {
            Matched { declared: 0, guest: 0 } if pattern.is_exact() => {
                format!("no event {pattern} so far; a guest's event of that name will be {state}")
            }
            Matched { declared: 0, guest: 0 } => {
                format!("no event fits {pattern} so far; a guest's event that fits will be {state}")
            }
            Matched { declared, guest } => {
                format!("{state}: {declared} declared, {guest} of the guest's")
            }
        })
    }

    fn info_events(&self, pattern: &str) -> Result<String, String> {
        let pattern: Pattern = pattern.parse().map_err(|e| error_chain(&e))?;
        let declared = EVENTS.iter().map(|event| (event.name().to_owned(), event.is_wanted(), ""));
        // The names are copied, so that this thread can release the engine's lock early and the drain does
        // not wait for the lock.
        let guests: Vec<_> = {
            let engine = self.engine();
            let names = engine.state.classes.wanted.names();
            names.map(|(name, on)| (name.to_owned(), on, " (guest)")).collect()
        };
        let fits = |(name, ..): &(String, bool, &str)| pattern.matches(name);
        let mut rows: Vec<_> = declared.chain(guests).filter(fits).collect();
        if rows.is_empty() {
            return Err(format!("no event fits {pattern} so far"));
        }
        rows.sort();
        // The code may mark the same region at several places.
        rows.dedup();
        let row = |(name, on, whose)| format!("{name} : state {}{whose}\n", u8::from(on));
        Ok(rows.into_iter().map(row).collect())
    }

    fn info_trace(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(text, "backends: {}", backends::names(registry::active()));
        let unattached = rings::unattached();
        if unattached > 0 {
            let _ = writeln!(text, "events of threads that no session has: {unattached}");
        }
        self.engine().describe_trace(&mut text);
        text
    }

    fn trace_file(&self, on: bool) -> Result<String, String> {
        let mut engine = self.engine();
        // The events that were recorded before this call are written or dropped according to the former state
        // of the file.
        engine.pass();
        match &mut engine.simple.file {
            Some(simple) => {
                simple.set(on, ticks());
                Ok(String::new())
            }
            None => Err("there is no file: trace-file set PATH".into()),
        }
    }
}

fn switch(state: &str) -> Result<bool, String> {
    match state {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("expected on or off, found {other:?}\n{HELP}")),
    }
}

/// Returns the usage of a command, or `None` if there is no such command.
fn usage(name: &str) -> Option<String> {
    let lines = HELP.lines().filter(|line| line.split(' ').next() == Some(name));
    let lines: Vec<&str> = lines.collect();
    (!lines.is_empty()).then(|| format!("usage of {name}:\n{}", lines.join("\n")))
}

const HELP: &str = "\
info trace-events [PATTERN]        list events and their states; * is any run of characters, ? any one
info trace                         show backends, rings and what waits in the rings
trace-event NAME|PATTERN on|off    switch declared events and the guest's events, also before their first use
trace-file on|off|flush|set [PATH] control the file for QEMU's simpletrace reader
trace-backend NAME on|off          switch log, syslog, ftrace[:DIR], ftrace-raw[:DIR] or sdt
snapshot                           write the contents of a flight recorder's rings as a session of its own
trigger list|add RULE|remove N     list or change what reference points do: on NAME [if argN==VALUE] do ACTION, ..
trace-events-all                   print all declarations, for a reader of the trace-file
help                               print this list";
