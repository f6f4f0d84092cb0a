// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The inputs to read: the given paths, and the opened inputs.

use crate::compiled::{Module, has_functions};
use crate::error::{Error, Result};
use crate::inputs::ctf::{self, ClockMaps, Offset, Session};
use crate::inputs::functions::{self, FunctionTrace};
use crate::inputs::kernel::{self, GuestKernel, KernelTrace};
use crate::inputs::names::Names;
use crate::inputs::needs::Needs;
use crate::merge::Timeline;
use hypertrace_format::error::Warning;
use hypertrace_format::session_json;
use hypertrace_functions::symbols::Source;
use hypertrace_kernel::Summary;
use std::path::{Path, PathBuf};

/// A path to read, with the options that relate the times of this input to the times of the other inputs.
#[derive(Clone, Debug)]
pub struct Given {
    /// Path of the input.
    pub path: PathBuf,
    /// Kind of input at the path.
    pub form: Form,
    /// Time that is added to the times of the input's events. Only a session or a trace of a kernel can have
    /// an offset.
    pub offset: Option<Offset>,
    /// Directory of the session whose guest recorded the input. Only a trace of a kernel can have this
    /// directory.
    pub guest_of: Option<PathBuf>,
}

/// Kind of input at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The directory of a session, with the trace of the session's kernel if there is one.
    Session,
    /// A trace of a kernel.
    Kernel,
    /// The directory of a function trace.
    Functions,
}

impl Given {
    /// Guesses the kind of input from the path. A directory that is no function trace counts as a session. A
    /// file counts as the trace of a kernel, unless its name is `session.json`.
    pub fn new(path: impl Into<PathBuf>) -> Given {
        let path = path.into();
        let is_of_session = path.file_name().is_some_and(|name| name == session_json::FILE);
        let form = match path.metadata() {
            Ok(found) if !found.is_dir() && !is_of_session => Form::Kernel,
            _ if path.join("info").is_file() && !path.join(session_json::FILE).exists() => {
                Form::Functions
            }
            _ => Form::Session,
        };
        Given { path, form, offset: None, guest_of: None }
    }
}

/// Sessions with their clocks, traces of kernels, and function traces, all on the clock of the first
/// session's host.
///
/// The error of a session's times has a known bound if the session and the first session have the same
/// counter ([`Session::counter`]). If the counters differ, the error is unknown.
#[derive(Debug, Default)]
pub struct Recording {
    /// Sessions with their clocks.
    pub sessions: Vec<(Session, ClockMaps)>,
    /// Traces of kernels. The traces of the sessions come first. A trace need not belong to a session.
    pub traces: Vec<KernelTrace>,
    /// Function traces, each on the clock of a session ([`FunctionTrace::place`]) if there is a session.
    pub functions: Vec<FunctionTrace>,
    /// Files with the names of compiled-in functions. [`Recording::read`] looks up the names in these files
    /// for [`EventRef::function`](crate::EventRef::function).
    pub modules: Vec<Module>,
    /// Summaries of the recordings of guests' kernels that lie in sessions, including recordings that are not
    /// among the traces.
    pub guest_kernels: Vec<Summary>,
    /// Parts of sessions that are not read.
    pub unread: Vec<Unread>,
}

/// Unused events of a kernel in a session.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unread {
    /// Index of the session.
    pub session: usize,
    /// Events that are not used.
    pub what: UnreadPart,
    /// Reason why the events are not used.
    pub why: Error,
}

/// Kind of the events that are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadPart {
    /// The trace of the kernel of the session's host. [`Recording::traces`] lacks this trace.
    Host,
    /// The recording of the kernel of the session's host, if the recording is in progress or its writer was
    /// killed. `hypertrace info DIR` completes the recording of a killed writer.
    Unfinished,
    /// The times in the traces of hosts' kernels, which would limit the errors of the session's clocks. The
    /// events of these traces are still read.
    Clocks,
    /// Recordings of a guest's kernel that are not among the traces, because they are no valid recordings or
    /// their times are not known.
    Guest,
}

impl Recording {
    /// Makes a recording of sessions and traces that the caller has opened.
    pub fn of(
        sessions: impl Into<Vec<(Session, ClockMaps)>>,
        traces: impl Into<Vec<KernelTrace>>,
    ) -> Recording {
        let (sessions, traces) = (sessions.into(), traces.into());
        Recording { sessions, traces, ..Recording::default() }
    }

    /// Opens all given inputs, and the recordings of guests' kernels within sessions. Sessions of one boot
    /// get one common counter. All traces that show a session's host are used to limit the errors of the
    /// session's clocks. Sessions and other inputs keep the order of their paths.
    ///
    /// # Errors
    /// If an input is not of the expected kind, is damaged, or cannot be placed on the clock of the other
    /// inputs.
    pub fn open(given: &[Given]) -> Result<Recording> {
        let of = |form| given.iter().filter(move |given| given.form == form);
        let dirs = Vec::from_iter(of(Form::Session).map(|given| &given.path));
        let mut sessions = Session::open_all(&dirs)?;
        let (mut traces, mut unread) = (Vec::new(), Vec::new());
        let mut note = |session, what, why| unread.push(Unread { session, what, why });
        for (number, (session, given)) in sessions.iter_mut().zip(of(Form::Session)).enumerate() {
            if let Some(offset) = given.offset {
                session.add_offset(offset);
            }
            match KernelTrace::of_session(number, session) {
                Ok(Some(trace)) => traces.push(trace),
                Ok(None) => {
                    let left = KernelTrace::unfinished(session);
                    left.into_iter().for_each(|why| note(number, UnreadPart::Unfinished, why));
                }
                Err(why) => note(number, UnreadPart::Host, why),
            }
        }
        for given in of(Form::Kernel).filter(|given| given.guest_of.is_none()) {
            let mut trace = KernelTrace::open(&given.path)?;
            for (number, session) in sessions.iter().enumerate() {
                trace.join(number, session);
            }
            given.offset.into_iter().for_each(|offset| trace.add_offset(offset));
            traces.push(trace);
        }
        let (mut inside, mut guest_kernels) = (Vec::new(), Vec::new());
        for (number, session) in sessions.iter().enumerate() {
            let mut failed = Vec::new();
            let not_read = GuestKernel::find(session, &mut |kernel| {
                guest_kernels.push(kernel.summary().clone());
                match kernel.open(number) {
                    Ok(trace) => inside.push(trace),
                    Err(why) => failed.push(why),
                }
            });
            failed.into_iter().chain(not_read).for_each(|why| note(number, UnreadPart::Guest, why));
        }
        let mut maps = Vec::new();
        for (number, session) in sessions.iter().enumerate() {
            let of_kernel = KernelTrace::clock_maps_of(number, &sessions, &traces, &inside);
            maps.push(of_kernel.or_else(|why| {
                note(number, UnreadPart::Clocks, why);
                ClockMaps::of(session)
            })?);
        }
        let sessions = Vec::from_iter(sessions.into_iter().zip(maps));
        for mut trace in inside {
            let number = trace.session().unwrap_or(0);
            let (session, maps) = &sessions[number];
            match trace.set_guest(session, maps) {
                Ok(()) => traces.push(trace),
                Err(why) => note(number, UnreadPart::Guest, why),
            }
        }
        for given in of(Form::Kernel) {
            let Some(dir) = &given.guest_of else { continue };
            let mut trace = KernelTrace::open(&given.path)?;
            let mut all = sessions.iter();
            let (session, maps) =
                all.find(|(session, _)| session.dir() == dir).ok_or_else(|| Error::NotGiven {
                    path: given.path.clone(),
                    session: dir.clone(),
                })?;
            trace.set_guest(session, maps)?;
            given.offset.into_iter().for_each(|offset| trace.add_offset(offset));
            traces.push(trace);
        }
        KernelTrace::pair(&mut traces);
        KernelTrace::warn_of_unplaced(&mut traces, !sessions.is_empty());
        let all = Vec::from_iter(sessions.iter().map(|(session, _)| session));
        let mut functions: Vec<FunctionTrace> = Vec::new();
        for given in of(Form::Functions) {
            let mut trace = FunctionTrace::open(&given.path)?;
            trace.place(&all, functions.first())?;
            functions.push(trace);
        }
        let modules = Vec::new();
        Ok(Recording { sessions, traces, functions, modules, guest_kernels, unread })
    }

    /// Returns whether functions are compiled into a program of a session.
    pub fn has_compiled_functions(&self) -> bool {
        self.sessions.iter().any(|(session, _)| has_functions(session))
    }

    /// Adds names of functions to function traces and to the files with compiled-in functions.
    ///
    /// # Errors
    /// If the file has no names of functions.
    pub fn add_symbols(&mut self, source: &Source) -> Result<()> {
        self.functions.iter_mut().try_for_each(|trace| trace.add_symbols(source))?;
        if self.has_compiled_functions() {
            self.modules.push(Module::read(source)?);
        }
        Ok(())
    }

    /// Returns the Unix time at which the first session or function trace started, in nanoseconds.
    pub fn start_unix_ns(&self) -> i64 {
        let started = self.sessions.iter().map(|(session, _)| session.json().started_unix_ns).min();
        let first = || self.functions.iter().map(FunctionTrace::start_unix_ns).min();
        started.or_else(first).unwrap_or(0)
    }

    /// Returns the trace of the host's kernel of the session with this index.
    pub fn kernel_of(&self, session: usize) -> Option<&KernelTrace> {
        let (session, _) = self.sessions.get(session)?;
        self.traces.iter().find(|trace| trace.path().parent() == Some(session.dir()))
    }

    /// Returns why the events of the host's kernel are not used for the session with this index.
    pub fn unread_of(&self, session: usize) -> Option<&Error> {
        let is_of_host = |what| matches!(what, UnreadPart::Host | UnreadPart::Clocks);
        let mut all = self.unread.iter();
        all.find(|unread| unread.session == session && is_of_host(unread.what))
            .map(|unread| &unread.why)
    }

    /// Iterates over the faults that did not prevent the opening of inputs.
    pub fn warnings(&self) -> impl Iterator<Item = Warning> {
        let functions = self.functions.iter().flat_map(FunctionTrace::warnings);
        self.traces.iter().flat_map(KernelTrace::warnings).chain(functions)
    }

    /// Iterates over the paths of sessions, of traces of kernels, and of function traces.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let sessions = self.sessions.iter().map(|(session, _)| session.dir());
        let functions = self.functions.iter().map(|functions| functions.trace().path());
        sessions.chain(self.traces.iter().map(KernelTrace::path)).chain(functions)
    }

    /// Returns a timeline with the events that the reader needs. The timeline is at its beginning.
    ///
    /// # Errors
    /// If the first records of a stream or of a trace are damaged.
    pub(crate) fn timeline<'a>(&'a self, needs: &'a Needs) -> Result<Timeline<'a>> {
        let Recording { sessions, traces, functions, .. } = self;
        let traces = if needs.without_kernels { &[] } else { &**traces };
        let functions = if needs.without_functions { &[] } else { &**functions };
        let mut hosts: Vec<_> =
            sessions.iter().map(|(s, _)| (s.name(), s.json().sides())).collect();
        let mut number = |session: Option<usize>, name: &dyn Fn() -> String, side| {
            session.unwrap_or_else(|| {
                hosts.push((name(), ["", side]));
                hosts.len() - 1
            })
        };
        let of_traces = traces.iter().map(|t| number(t.session(), &|| t.name(), "kernel"));
        let of_traces = Vec::from_iter(of_traces);
        let of_functions = functions.iter().map(|f| number(f.session(), &|| f.name(), "functions"));
        let of_functions = Vec::from_iter(of_functions);
        let mut names = Names::new(hosts);
        let mut all = Vec::new();
        let mut margins = Vec::new();
        for (number, (session, maps)) in sessions.iter().enumerate() {
            let stated = session.offset().and_then(|offset| offset.bound_ns);
            let is_placed = number == 0
                || stated.is_some()
                || sessions.first().is_some_and(|(first, _)| session.is_placed_with(first));
            margins.push(is_placed.then_some(stated.unwrap_or(0)));
            all.extend(ctf::inputs(number, session, maps, needs, &mut names));
        }
        for (trace, number) in traces.iter().enumerate().zip(of_traces) {
            all.extend(kernel::inputs(number, trace, &names));
        }
        for (trace, number) in functions.iter().zip(of_functions) {
            all.extend(functions::inputs(number, trace, functions.len() == 1, &mut names)?);
        }
        if needs.has_all_threads {
            // The traces have the first indices. The inputs with the scheduling of all threads have the next
            // indices, in the order of the traces.
            let traces = (traces.len()..).zip(traces);
            all.extend(traces.flat_map(|(number, trace)| kernel::inputs_of_cpus(number, trace)));
        }
        if margins.iter().all(|margin| *margin == Some(0)) {
            margins.clear();
        }
        Timeline::of(all, names, margins)
    }
}
