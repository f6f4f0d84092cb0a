// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A directory with its tasks and symbols.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::describe::{self, Mapped};
use super::records::Records;
use super::{MAX_DESCRIPTION, MAX_MODULES, MAX_SYMBOLS};
use crate::clock::Anchor;
use crate::record::{ADDRESS_MASK, SIZE};
use crate::symbols::{Source, Symbol, Symbols, text};
use crate::task::Task;
use crate::{Error, Result, file};

/// Directory of uftrace's format that was opened.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    anchor: Option<Anchor>,
    tasks: Vec<Task>,
    modules: Vec<(Mapped, Symbols)>,
    /// Symbols from elsewhere, which are used first
    added: Symbols,
    watcher: Watcher,
}

/// Function that gets numbers of records.
#[derive(Default)]
struct Watcher(Option<Box<dyn Fn(u64) + Send + Sync>>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watcher").field(&self.0.is_some()).finish()
    }
}

impl Trace {
    /// Opens a directory: reads which tasks it has, and its symbols. Reads no records.
    ///
    /// # Errors
    /// If it is not such a directory, or a description in it is damaged.
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
        let tids = describe::tids(&info)?;
        let anchor = Anchor::read(path)?;
        let sessions = describe::sessions(&path.join("task.txt"))?;
        let name = |tid| sessions.names.get(&tid).cloned().unwrap_or_default();
        let tasks = tids.into_iter().map(|tid| Task { tid, name: name(tid) }).collect();
        let mut modules: Vec<(Mapped, Symbols)> = Vec::new();
        let mut symbol_bytes = MAX_SYMBOLS;
        let mut map_bytes = MAX_DESCRIPTION;
        for session in &sessions.maps {
            for mapped in describe::map(&path.join(format!("sid-{session}.map")), &mut map_bytes)? {
                if modules.iter().any(|(known, _)| *known == mapped) {
                    continue;
                }
                let symbols = module(path, &mapped, &mut symbol_bytes)?;
                modules.push((mapped, symbols));
                if modules.len() > MAX_MODULES {
                    return Err(Error::unsuitable(path, "more modules than a trace can have"));
                }
            }
        }
        Ok(Trace {
            path: path.to_owned(),
            anchor,
            tasks,
            modules,
            added: Symbols::default(),
            watcher: Watcher::default(),
        })
    }

    /// Returns the directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns where time 0 is on the host's clocks; `None` if another recorder made the directory.
    #[must_use]
    pub fn anchor(&self) -> Option<&Anchor> {
        self.anchor.as_ref()
    }

    /// Returns the tasks by number. A task may have no records.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Adds symbols that are not in the directory. They are used before those that are.
    ///
    /// # Errors
    /// If the file has no symbols; the message says why.
    pub fn add_symbols(&mut self, source: &Source) -> Result<()> {
        self.added.add(source)
    }

    /// Iterates over the modules of the directory, with their names and functions.
    pub fn modules(&self) -> impl Iterator<Item = (&str, &Symbols)> {
        self.modules.iter().map(|(mapped, symbols)| (mapped.name.as_str(), symbols))
    }

    /// Finds the function that contains an address.
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

    /// Returns the number of records of all tasks that the sizes of their files allow: a killed recorder leaves larger
    /// files.
    #[must_use]
    pub fn most_records(&self) -> u64 {
        let sizes = self.tasks.iter().filter_map(|task| fs::metadata(self.file(task.tid)).ok());
        sizes.map(|file| file.len() / SIZE as u64).fold(0, u64::saturating_add)
    }

    /// Calls a function with the number of records that were read since the last time, every 65,536 records and at the
    /// end of each task, while calls are read: for a display of the progress.
    pub fn watch(&mut self, watcher: impl Fn(u64) + Send + Sync + 'static) {
        self.watcher = Watcher(Some(Box::new(watcher)));
    }

    /// Reports further records to the function of [`watch`](Self::watch).
    pub(super) fn notify(&self, records: u64) {
        if let Some(watcher) = &self.watcher.0 {
            watcher(records);
        }
    }

    /// Returns an iterator over a task's records. A task without a file has none.
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

/// Reads the symbols of a module, if there are any, of at most `most` bytes in all. uftrace adds some letters to a file's
/// name that two modules have: those are not read.
fn module(directory: &Path, mapped: &Mapped, most: &mut u64) -> Result<Symbols> {
    let mut symbols = Symbols::default();
    let path = directory.join(format!("{}.sym", mapped.name));
    if path.is_file() {
        let bytes = file::contents(&path, *most, "the symbols of all modules are too large")?;
        *most -= bytes.len() as u64;
        text::read(&bytes, &path, mapped.start, &mut symbols)?;
        symbols.finish();
    }
    Ok(symbols)
}
