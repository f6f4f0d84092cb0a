// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The directory and its descriptions.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use hypertrace_format::error::{DirectoryError, Warning};
use hypertrace_format::folder::{Folder, Share, inode};
use rustix::fs::OFlags;

use super::events::Events;
use super::{Records, cut, text};
use crate::clock::{self, Anchor};
use crate::read::MAX_SYMBOLS;
use crate::symbols::Symbols;
use crate::task::Task;
use crate::{Error, Result};

/// Name of a directory's only session, with 16 characters, as uftrace's names have.
const SESSION: &str = "0000000000000001";

/// Directory that is being written.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Device and inode of the directory. No descriptor is kept, because an emulated program may close every
    /// descriptor.
    inode: (u64, u64),
    program: String,
    command: String,
    tasks: Vec<Task>,
    /// Modules by name
    modules: Vec<(String, text::Module)>,
}

impl Directory {
    /// Creates a directory, or uses an empty directory. Only this user can read the directory, whatever the
    /// umask is. `program` names the traced program, and `command` is the command that was executed to trace
    /// it.
    ///
    /// # Errors
    /// If the directory is not empty, is another user's, or cannot be created.
    pub fn create(path: &Path, program: &str, command: &str) -> Result<Self> {
        let folder = Folder::new_or_empty(path, Share::Owner).map_err(|why| refused(path, why))?;
        let directory = Directory {
            path: path.to_owned(),
            inode: inode(&folder.stat().map_err(Error::io("read", path))?),
            program: program.to_owned(),
            command: command.to_owned(),
            tasks: Vec::new(),
            modules: Vec::new(),
        };
        directory.write_map()?;
        directory.describe()?;
        Ok(directory)
    }

    /// Returns the directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the trace's directory. Returns an error if the path now leads to another directory.
    pub(super) fn folder(&self) -> Result<Folder> {
        let failed = |why| Error::io("write", &self.path)(why);
        let folder = Folder::open(&self.path, Share::Owner).map_err(failed)?;
        match inode(&folder.stat().map_err(failed)?) == self.inode {
            true => Ok(folder),
            false => Err(Error::unsuitable(&self.path, "another directory by now")),
        }
    }

    /// Opens the file of records of a task that was added before, so that records can be written at the
    /// file's end.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn append(&self, tid: u32) -> Result<Records> {
        let path = self.records(tid);
        let name = path.file_name().unwrap_or_default();
        let (file, _) = self
            .folder()?
            .file(name, OFlags::WRONLY | OFlags::APPEND)
            .map_err(Error::io("write", &path))?;
        Ok(Records::of(file.into(), path))
    }

    /// Returns the path of a task's records.
    #[must_use]
    pub fn records(&self, tid: u32) -> PathBuf {
        self.path.join(format!("{tid}.dat"))
    }

    /// Adds tasks, and creates an empty file of records for each task. As long as the directory has no task,
    /// uftrace says that there is no data.
    ///
    /// # Errors
    /// If a number is 0, too large or in use, or a file cannot be written.
    pub fn add_tasks(&mut self, tasks: impl IntoIterator<Item = Task>) -> Result<()> {
        for task in tasks {
            self.create_task(task)?;
        }
        self.describe()
    }

    /// Adds a task and creates its empty file of records, but does not write the task's description: the
    /// caller calls [`describe`](Self::describe) later. Programs that find many tasks one by one use this
    /// function.
    ///
    /// # Errors
    /// As for [`add_tasks`](Self::add_tasks).
    pub fn create_task(&mut self, task: Task) -> Result<()> {
        let records = self.records(task.tid);
        let wrong = || {
            let why = format!("{} cannot be the number of another task", task.tid);
            Err(Error::unsuitable(&self.path, why))
        };
        if task.tid == 0 || task.tid > i32::MAX as u32 {
            return wrong();
        }
        match self.folder()?.only_file(records.file_name().unwrap_or_default()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return wrong(),
            Err(error) => return Err(Error::io("create", &records)(error)),
        }
        self.tasks.push(task);
        Ok(())
    }

    /// Copies or links all whole records from the file `from`. The records become the records of a task that
    /// was added before. Makes a hard link to the file if this user owns the file, the file needs no cut, and
    /// the file system can make the link. Otherwise copies the records. A file that does not exist has no
    /// records. Returns the faults of the file that did not prevent the copy or the link.
    ///
    /// # Errors
    /// If `from` is not a file with records, or a file cannot be read or written.
    pub fn take_records(&self, tid: u32, from: &Path) -> Result<Vec<Warning>> {
        let mut warnings = Vec::new();
        let whole = cut::whole_records(from, &mut warnings)?;
        let Some((file, end)) = whole else { return Ok(warnings) };
        let to = self.records(tid);
        let (folder, aside) = (self.folder()?, format!(".{tid}.dat.new"));
        let failed = |why| Error::io("write", &to)(why);
        let metadata = file.metadata().map_err(Error::io("read", from))?;
        // If the file belongs to another user, then the records are copied, because the other user could
        // change the file later.
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        if end < metadata.len() || !is_own || folder.link(&file, &aside).is_err() {
            let mut copy = File::from(folder.new_file(&aside).map_err(failed)?);
            io::copy(&mut io::Read::take(file, end), &mut copy).map_err(failed)?;
        }
        folder.rename(&aside, to.file_name().unwrap_or_default()).map_err(failed)?;
        Ok(warnings)
    }

    /// Adds a module. The module's `.sym` file has the module's name and a suffix. The module's range is the
    /// range of its functions. Ranges must not overlap, because uftrace uses the first module that contains
    /// an address.
    ///
    /// # Errors
    /// If the name is in use, or a file cannot be written.
    pub fn add_module(&mut self, name: &str, symbols: &Symbols) -> Result<()> {
        let name = text::file_name(name);
        if self.modules.iter().any(|(known, _)| *known == name) {
            let why = format!("there is a module {name} already");
            return Err(Error::unsuitable(&self.path, why));
        }
        self.set_module(&name, symbols)
    }

    /// Replaces a module's functions, or adds the module.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn set_module(&mut self, name: &str, symbols: &Symbols) -> Result<()> {
        let name = text::file_name(name);
        self.modules.retain(|(known, _)| *known != name);
        let others: usize = self.modules.iter().map(|(_, module)| module.bytes).sum();
        let most = (MAX_SYMBOLS as usize).saturating_sub(others);
        if let Some((module, contents)) = text::module(&name, symbols, most) {
            self.replace(&format!("{name}.sym"), contents.as_bytes())?;
            self.modules.push((name, module));
        }
        self.write_map()
    }

    /// Returns the number of functions whose names are not in the directory. Names are left out if the
    /// symbols of all modules would have more than [`MAX_SYMBOLS`] bytes, because readers accept no more.
    #[must_use]
    pub fn names_left_out(&self) -> usize {
        self.modules.iter().map(|(_, module)| module.left_out).sum()
    }

    /// Writes the anchor, which has the values of the host's clocks at time 0.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_anchor(&self, anchor: &Anchor) -> Result<()> {
        self.replace(clock::FILE, anchor.to_json().as_bytes())
    }

    /// Writes all events at once. Each event has a time in nanoseconds, as in records, and a text.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_events<T: AsRef<str>>(
        &self,
        events: impl IntoIterator<Item = (u64, T)>,
    ) -> Result<()> {
        let mut events: Vec<_> = events.into_iter().collect();
        events.sort_by_key(|(time, _)| *time);
        let mut writer = self.events()?;
        for (time, text) in events {
            writer.write(time, text.as_ref())?;
        }
        writer.finish()
    }

    /// Returns a writer of events. The caller writes all events in the order of their times.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn events(&self) -> Result<Events> {
        Events::create(self.folder()?)
    }

    /// Writes the descriptions of the tasks. `info` is written last, because `info` names the tasks that a
    /// reader looks for.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn describe(&self) -> Result<()> {
        self.replace("task.txt", text::tasks(&self.tasks, SESSION).as_bytes())?;
        self.replace("info", &text::info(&self.program, &self.command, &self.tasks))
    }

    /// Removes the descriptions of a trace that has no tasks and will get no records. Then the directory is
    /// empty, and can be used for the next trace.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn discard(&self) -> Result<()> {
        let modules = self.modules.iter().map(|(name, _)| format!("{name}.sym"));
        let others = ["info", "task.txt", clock::FILE].map(str::to_owned);
        let folder = self.folder()?;
        for name in modules.chain(others).chain([Self::map_name()]) {
            match folder.remove(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result.map_err(Error::io("remove", &self.path.join(name)))?,
            }
        }
        Ok(())
    }

    fn map_name() -> String {
        format!("sid-{SESSION}.map")
    }

    fn write_map(&self) -> Result<()> {
        let lines = self.modules.iter().map(|(_, module)| module.line.as_str());
        let map = lines.chain([text::STACK_LINE]).collect::<String>();
        self.replace(&Self::map_name(), map.as_bytes())
    }

    /// Replaces a file as a whole.
    fn replace(&self, name: &str, contents: &[u8]) -> Result<()> {
        let written = self.folder()?.replace(name, contents);
        written.map(drop).map_err(|why| Error::io("write", &self.path.join(name))(why.source))
    }
}

/// Returns the error for a directory that cannot be used.
fn refused(path: &Path, why: DirectoryError) -> Error {
    match why {
        DirectoryError::NotEmpty(_) => {
            Error::unsuitable(path, "not empty: give the path of a new or an empty directory")
        }
        DirectoryError::NotADirectory(_) => {
            Error::io("read", path)(io::ErrorKind::NotADirectory.into())
        }
        DirectoryError::NotOwned { .. } => {
            let why = "of another user, who could exchange its files: give a directory of your own";
            Error::unsuitable(path, why)
        }
        DirectoryError::Unusable { source, .. } => Error::io("create", path)(source),
    }
}
