// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A directory with its tasks and symbols.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypertrace_format::error::Warning;
use hypertrace_format::number::counted;

use super::describe::{self, Mapped};
use super::records::Records;
use super::{MAX_DESCRIPTION, MAX_MODULES, MAX_SYMBOLS, MAX_TASKS};
use crate::clock::Anchor;
use crate::record::{ADDRESS_MASK, SIZE};
use crate::symbols::{Source, Symbol, Symbols, text};
use crate::task::Task;
use crate::{Error, Result, file};

/// An opened directory of uftrace's format.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    anchor: Option<Anchor>,
    tasks: Vec<Task>,
    /// Modules of all sessions, with ranges that do not overlap
    modules: Vec<(Mapped, Symbols)>,
    /// Processes of the tasks. `moved` has the sessions of each process. If all modules have their own
    /// addresses in `modules`, then `moved` is empty
    processes: BTreeMap<u32, u32>,
    moved: HashMap<u32, Vec<Executed>>,
    /// Symbols that the reader's user has added. These symbols take precedence over the directory's symbols
    added: Symbols,
    warnings: Vec<Warning>,
    watcher: Watcher,
}

/// A session of a process: the time at which the process began to execute a program, and the program's
/// modules that have other addresses in [`Trace::modules`].
type Executed = (u64, Arc<[Moved]>);

/// Addresses of a module in a session, if [`Trace::modules`] has the module at other addresses.
#[derive(Clone, Copy, Debug)]
struct Moved {
    start: u64,
    end: u64,
    /// First address of the module in [`Trace::modules`]
    to: u64,
}

/// Function that the reader calls with a number of records that were read.
#[derive(Default)]
struct Watcher(Option<Box<dyn Fn(u64) + Send + Sync>>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watcher").field(&self.0.is_some()).finish()
    }
}

impl Trace {
    /// Opens a directory, and reads its tasks and symbols, but no records. If a damaged part is not needed to
    /// read the rest, then the damage causes only a [warning](Self::warnings).
    ///
    /// # Errors
    /// If the path is not a directory of uftrace's format, or a description is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(Error::io("read", path))?;
        if !metadata.is_dir() {
            return Err(Error::unsuitable(path, "not a directory; give one that uftrace reads"));
        }
        let info = path.join("info");
        if fs::symlink_metadata(&info).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let why = "no file `info` in it: neither a function trace (functions=DIR) nor a directory of uftrace";
            return Err(Error::unsuitable(path, why));
        }
        let mut warnings = Vec::new();
        let mut tids = BTreeSet::from_iter(describe::tids(&info, &mut warnings)?);
        let anchor = Anchor::read(path)?;
        let task_txt = path.join("task.txt");
        let sessions = describe::sessions(&task_txt, &mut warnings)?;
        let files = Files::of(path)?;
        if let Some(tid) = tids.first().filter(|_| tids.is_disjoint(&files.tasks)) {
            let why = format!(
                "none of its tasks has a file of records, as {tid}.dat: copy the whole directory"
            );
            return Err(Error::unsuitable(path, why));
        }
        if let Some(unnamed) = first_of(tids.iter().filter(|tid| !sessions.names.contains_key(tid)))
        {
            let why = format!("no line of {unnamed}: tasks without a name");
            warnings.push(describe::damage(&Error::unsuitable(&task_txt, why)));
        }
        if let Some(unlisted) = first_of(files.tasks.difference(&tids)) {
            let why =
                format!("not the numbers of {unlisted}, whose files of records are read, too");
            warnings.push(format!("{}: {why}", info.display()).into());
        }
        if let Some(kernels) = &files.kernels {
            let why = "the calls of a kernel are left out: `uftrace report` shows them";
            warnings.push(format!("{}: {why}", path.join(kernels).display()).into());
        }
        tids.extend(files.tasks);
        if tids.len() > MAX_TASKS {
            return Err(Error::unsuitable(path, format!("more than {MAX_TASKS} tasks")));
        }
        let name = |tid| sessions.names.get(&tid).cloned().unwrap_or_default();
        let tasks = tids.into_iter().map(|tid| Task { tid, name: name(tid) }).collect();
        let mut modules: Vec<(Mapped, Symbols)> = Vec::new();
        let mut symbol_bytes = MAX_SYMBOLS;
        let mut map_bytes = MAX_DESCRIPTION;
        let mut moved: HashMap<&str, Arc<[Moved]>> = HashMap::new();
        for session in &sessions.maps {
            let mut of_session = Vec::new();
            let map = path.join(format!("sid-{session}.map"));
            for mapped in describe::map(&map, &mut map_bytes, &mut warnings)? {
                let is_same =
                    |known: &Mapped| known.name == mapped.name && known.size() == mapped.size();
                let known = modules.iter().map(|(known, _)| known).find(|known| is_same(known));
                let place = known.cloned().unwrap_or_else(|| free_place(&modules, &mapped));
                if place.start != mapped.start {
                    let Mapped { start, end, .. } = mapped;
                    of_session.push(Moved { start, end, to: place.start });
                }
                if known.is_none() {
                    let symbols = module(path, &place, &mut symbol_bytes, &mut warnings);
                    modules.push((place, symbols));
                }
                if modules.len().max(of_session.len()) > MAX_MODULES {
                    return Err(Error::unsuitable(path, "more modules than a trace can have"));
                }
            }
            moved.insert(session.as_str(), Arc::from(of_session));
        }
        let of_process = |executed: &Vec<(u64, String)>| {
            let moved =
                |(from, name): &(u64, String)| Some((*from, moved.get(name.as_str())?.clone()));
            executed.iter().filter_map(moved).collect()
        };
        let is_needed = moved.values().any(|moved| !moved.is_empty());
        let executed = sessions.executed.iter().filter(|_| is_needed);
        let moved = executed.map(|(process, executed)| (*process, of_process(executed))).collect();
        Ok(Trace {
            path: path.to_owned(),
            anchor,
            tasks,
            modules,
            processes: sessions.processes,
            moved,
            added: Symbols::default(),
            warnings,
            watcher: Watcher::default(),
        })
    }

    /// Returns the directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the values of the host's clocks at time 0 of the trace; `None` if another recorder made the
    /// directory.
    #[must_use]
    pub fn anchor(&self) -> Option<&Anchor> {
        self.anchor.as_ref()
    }

    /// Returns the directory's faults that did not prevent the opening. Faults of records are found only when
    /// the records are read.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Returns the tasks in the order of thread ids: the tasks in `info`, and the tasks with a file of
    /// records. A task may have no records.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Adds symbols that are not in the directory. Added symbols take precedence over the directory's
    /// symbols.
    ///
    /// # Errors
    /// If the file has no symbols. The error's message says why.
    pub fn add_symbols(&mut self, source: &Source) -> Result<()> {
        self.added.add(source)
    }

    /// Iterates over the modules of the directory, with their names and functions.
    pub fn modules(&self) -> impl Iterator<Item = (&str, &Symbols)> {
        self.modules.iter().map(|(mapped, symbols)| (mapped.name.as_str(), symbols))
    }

    /// Converts the address of a record to an address for [`function`](Self::function). `tid` is the record's
    /// task, and `time` is the record's time. The conversion is needed, because after `exec`, a program may
    /// be at other addresses, or another program may be at the same addresses.
    #[must_use]
    pub fn placed(&self, tid: u32, time: u64, address: u64) -> u64 {
        if self.moved.is_empty() {
            return address;
        }
        let process = self.processes.get(&tid).unwrap_or(&tid);
        let Some(sessions) = self.moved.get(process) else { return address };
        let after = sessions.partition_point(|(from, _)| *from <= time);
        let Some((_, moved)) = sessions.get(after.saturating_sub(1)) else { return address };
        let at = address & ADDRESS_MASK;
        let module = moved.iter().find(|moved| (moved.start..moved.end).contains(&at));
        module.map_or(address, |module| module.to + (at - module.start))
    }

    /// Finds the function that contains an address. The address is an address that [`placed`](Self::placed)
    /// returns.
    #[must_use]
    pub fn function(&self, address: u64) -> Option<Symbol<'_>> {
        let address = address & ADDRESS_MASK;
        let in_module = || {
            let contains = |mapped: &Mapped| (mapped.start..mapped.end).contains(&address);
            let (_, symbols) = self.modules.iter().find(|(mapped, _)| contains(mapped))?;
            symbols.lookup(address)
        };
        self.added.lookup(address).or_else(in_module)
    }

    /// Returns the maximum number of records of all tasks, computed from the sizes of the files of records.
    /// There may be fewer records, because a killed recorder leaves zeros in the files.
    #[must_use]
    pub fn most_records(&self) -> u64 {
        let sizes = self.tasks.iter().filter_map(|task| fs::metadata(self.file(task.tid)).ok());
        sizes.map(|file| file.len() / SIZE as u64).fold(0, u64::saturating_add)
    }

    /// Sets a function for the display of progress. While calls are read, the reader calls the function after
    /// each 65,536 records, and at the end of each task. The argument is the number of records that were read
    /// since the last call.
    pub fn watch(&mut self, watcher: impl Fn(u64) + Send + Sync + 'static) {
        self.watcher = Watcher(Some(Box::new(watcher)));
    }

    /// Calls the function that [`watch`](Self::watch) has set, with the number of records that were read
    /// since the last call.
    pub(super) fn notify(&self, records: u64) {
        if let Some(watcher) = &self.watcher.0 {
            watcher(records);
        }
    }

    /// Returns an iterator over a task's records. A task without a file has no records.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn records(&self, tid: u32) -> Result<Records> {
        Records::open(&self.file(tid))
    }

    fn file(&self, tid: u32) -> PathBuf {
        self.path.join(format!("{tid}.dat"))
    }
}

/// Returns a range of addresses for a module: the module's own range if no other module is there, and
/// otherwise a range behind all other modules.
fn free_place(modules: &[(Mapped, Symbols)], mapped: &Mapped) -> Mapped {
    let overlaps = |(other, _): &(Mapped, _)| other.start < mapped.end && mapped.start < other.end;
    if !modules.iter().any(overlaps) {
        return mapped.clone();
    }
    let behind = modules.iter().map(|(other, _)| other.end).max().unwrap_or(0);
    match behind.checked_add(mapped.size()) {
        Some(end @ ..=ADDRESS_MASK) => Mapped { start: behind, end, name: mapped.name.clone() },
        // If there is no room, then the module keeps its addresses, and overlaps another module.
        _ => mapped.clone(),
    }
}

/// Reads the symbols of a module, if there are any. `most` is the number of bytes that the symbols of all
/// further modules may have. If two modules have the same file name, uftrace adds some letters to the name of
/// a `.sym` file. This function does not read such a `.sym` file.
fn module(
    directory: &Path,
    mapped: &Mapped,
    most: &mut u64,
    warnings: &mut Vec<Warning>,
) -> Symbols {
    let mut symbols = Symbols::default();
    let path = directory.join(format!("{}.sym", mapped.name));
    let bytes = match file::contents(&path, *most, "the symbols of all modules are too large") {
        Ok(bytes) => bytes,
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return symbols,
        Err(why) => {
            warnings.push(describe::damage(&why));
            return symbols;
        }
    };
    *most -= bytes.len() as u64;
    let bytes = describe::whole_lines(&bytes, &path, warnings);
    let read = text::read(bytes, &path, mapped.start, &mut symbols);
    if let Err(why) = read.and_then(|()| text::check_count(bytes, &path)) {
        warnings.push(describe::damage(&why));
    }
    symbols.finish();
    symbols
}

/// The files of records in a directory.
struct Files {
    /// Numbers of the tasks, including tasks with empty files.
    tasks: BTreeSet<u32>,
    /// Name of a file in which uftrace keeps a kernel's calls.
    kernels: Option<OsString>,
}

impl Files {
    fn of(path: &Path) -> Result<Files> {
        let failed = |why| Error::io("read", path)(why);
        let mut files = Files { tasks: BTreeSet::new(), kernels: None };
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".dat")) else {
                continue;
            };
            let number = stem.parse::<u32>().ok().filter(|number| number.to_string() == stem);
            if let Some(number) = number {
                files.tasks.insert(number);
                if files.tasks.len() > MAX_TASKS {
                    return Err(Error::unsuitable(path, format!("more than {MAX_TASKS} tasks")));
                }
            }
            let is_empty = || entry.metadata().is_ok_and(|found| found.len() == 0);
            if stem.starts_with("kernel-cpu") && !is_empty() {
                files.kernels.get_or_insert(name.clone());
            }
        }
        Ok(files)
    }
}

/// Returns a text that names the first of these tasks and says how many other tasks there are; `None` if
/// there are no tasks.
fn first_of<'t>(mut tasks: impl Iterator<Item = &'t u32>) -> Option<String> {
    let first = tasks.next()?;
    Some(match tasks.count() as u64 {
        0 => format!("the task {first}"),
        others => format!("the task {first} and of {}", counted(others, "other")),
    })
}
