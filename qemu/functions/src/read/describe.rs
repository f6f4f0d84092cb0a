// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reads `info`, `task.txt` and maps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hypertrace_format::error::{Warning, error_chain};
use hypertrace_format::number::counted;

use super::{MAX_DESCRIPTION, MAX_MODULES, MAX_TASKS};
use crate::record::ADDRESS_MASK;
use crate::{Error, Result, file};

const HEADER: usize = 40;

/// Maximum length of a task's name in characters. Longer names are cut to this length. The kernel's names
/// have at most 15 bytes.
const MAX_NAME: usize = 255;

/// Reads a description.
fn contents(path: &Path) -> Result<Vec<u8>> {
    file::contents(path, MAX_DESCRIPTION, "give a directory that uftrace reads")
}

/// Returns the whole lines of a text. A last line without a line feed is left out with a warning: the file
/// was cut there, because all recorders end each line.
pub(super) fn whole_lines<'b>(
    bytes: &'b [u8],
    path: &Path,
    warnings: &mut Vec<Warning>,
) -> &'b [u8] {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    if end < bytes.len() {
        let why = "the file ends within this line, which is left out: copy the whole directory";
        warnings.push(damage(&Error::damaged(path, end as u64, why)));
    }
    &bytes[..end]
}

/// Returns the warning about a damaged part of a directory. The rest of the directory is read without this
/// part.
pub(super) fn damage(why: &Error) -> Warning {
    Warning::damage(error_chain(why))
}

/// Reads the thread ids of the tasks in `info`.
pub(super) fn tids(path: &Path, warnings: &mut Vec<Warning>) -> Result<Vec<u32>> {
    let bytes = contents(path)?;
    let damaged = |offset: usize, why: &str| Error::damaged(path, offset as u64, why);
    let header = bytes.get(..HEADER).ok_or_else(|| {
        damaged(
            bytes.len(),
            "the header of 40 bytes is incomplete: give a directory that uftrace reads",
        )
    })?;
    if &header[..8] != b"Ftrace!\0" {
        return Err(damaged(0, "no data of uftrace, which begins with \"Ftrace!\""));
    }
    if header[8..12] != 4_u32.to_le_bytes() {
        return Err(damaged(8, "another version than 4: record it with uftrace 0.9 or later"));
    }
    if header[12..16] != [40, 0, 1, 2] {
        return Err(damaged(12, "not the header of a 64-bit little-endian machine"));
    }
    // This call only warns. The result of the call is not used, because even an incomplete last line may have
    // the numbers.
    whole_lines(&bytes, path, warnings);
    let mut offset = HEADER;
    for line in bytes[HEADER..].split(|byte| *byte == b'\n') {
        if let Some(list) = line.strip_prefix(b"taskinfo:tids=") {
            return numbers(list).ok_or_else(|| {
                damaged(offset, "expected the numbers of at most 65536 tasks, with commas")
            });
        }
        offset += line.len() + 1;
    }
    Err(damaged(offset.min(bytes.len()), "the numbers of the tasks are missing (taskinfo:tids=)"))
}

fn numbers(list: &[u8]) -> Option<Vec<u32>> {
    let text = str::from_utf8(list).ok()?;
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut tids = BTreeSet::new();
    for number in text.split(',') {
        tids.insert(number.parse().ok()?);
        if tids.len() > MAX_TASKS {
            return None;
        }
    }
    Some(tids.into_iter().collect())
}

/// Contents of `task.txt`: the tasks, and the programs that they execute.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Names of the tasks, by thread id. A task's name is the name of its process's last program
    pub names: BTreeMap<u32, String>,
    /// Ids of the tasks' processes, by thread id
    pub processes: BTreeMap<u32, u32>,
    /// Names of the sessions, in the order of the file. A session's map file has the session's name
    pub maps: Vec<String>,
    /// Sessions by process. Each session comes with the time in nanoseconds at which the process begins to
    /// use the session
    pub executed: BTreeMap<u32, Vec<(u64, String)>>,
}

impl Sessions {
    /// Returns the session of a process at a time. If the time is before the process's first session, returns
    /// the first session.
    fn at(&self, process: u32, time: u64) -> Option<&str> {
        let executed = self.executed.get(&process)?;
        let after = executed.partition_point(|(from, _)| *from <= time);
        executed.get(after.saturating_sub(1)).map(|(_, session)| session.as_str())
    }
}

/// Reads `task.txt`.
pub(super) fn sessions(path: &Path, warnings: &mut Vec<Warning>) -> Result<Sessions> {
    let bytes = contents(path)?;
    let bytes = whole_lines(&bytes, path, warnings);
    let (mut first_unknown, mut unknown) = (None, 0);
    let (mut found, mut programs) = (Sessions::default(), BTreeMap::new());
    let (mut sessions, mut known) = (0, BTreeSet::new());
    let mut offset = 0;
    for line in bytes.split(|byte| *byte == b'\n') {
        let damaged = |why: &str| Error::damaged(path, offset, why);
        let text = String::from_utf8_lossy(line);
        let time = || value(&text, "timestamp=").and_then(time).unwrap_or(0);
        let number = |name: &str| {
            let value = value(&text, name).and_then(|value| value.parse::<u32>().ok());
            value.ok_or_else(|| damaged(&format!("expected a number: {name}N")))
        };
        if text.starts_with("SESS ") {
            let name = text.split_once("exename=\"").and_then(|(_, name)| name.rsplit_once('"'));
            let (name, _) = name.ok_or_else(|| damaged("expected a name: exename=\"NAME\""))?;
            let session = value(&text, " sid=").unwrap_or_default();
            let is_name = session.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if session.is_empty() || session.len() > 64 || !is_name {
                return Err(damaged("expected the letters and digits of a session: sid=ID"));
            }
            // The program's name is cut to MAX_NAME characters, because each task of the process gets a copy
            // of the name.
            let name = name.chars().take(MAX_NAME).collect();
            let process = number(" pid=")?;
            programs.insert(process, name);
            if known.insert(session.to_owned()) {
                found.maps.push(session.to_owned());
            }
            found.executed.entry(process).or_default().push((time(), session.to_owned()));
            sessions += 1;
        } else if text.starts_with("TASK ") {
            found.processes.insert(number(" tid=")?, number(" pid=")?);
        } else if text.starts_with("FORK ") {
            // The child executes its parent's program until it executes another program.
            let (child, parent) = (number(" pid=")?, number(" ppid=")?);
            found.processes.insert(child, child);
            if let Some(program) = programs.get(&parent).cloned() {
                programs.insert(child, program);
            }
            if let Some(session) = found.at(parent, time()).map(str::to_owned) {
                found.executed.entry(child).or_default().push((0, session));
                sessions += 1;
            }
        } else if !text.is_empty() && !text.starts_with("DLOP ") {
            first_unknown.get_or_insert(offset);
            unknown += 1;
        }
        let tasks = found.processes.len();
        if tasks.max(programs.len()).max(sessions) > MAX_TASKS || found.maps.len() > MAX_MODULES {
            return Err(damaged("too many tasks or sessions"));
        }
        offset += line.len() as u64 + 1;
    }
    if let Some(first) = first_unknown {
        let lines = counted(unknown, "line");
        let why = format!("expected a line of SESS, TASK, FORK or DLOP ({lines} left out)");
        warnings.push(damage(&Error::damaged(path, first, why)));
    }
    for (tid, process) in &found.processes {
        let name = programs.get(process).cloned().unwrap_or_default();
        found.names.insert(*tid, name);
    }
    Ok(found)
}

/// Reads a time in nanoseconds, `SECONDS.NANOSECONDS`.
fn time(text: &str) -> Option<u64> {
    let (seconds, nanoseconds) = text.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds.parse().ok()?)
}

/// Returns the word after a name in a line.
fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.split_once(name)?.1.split_whitespace().next()
}

/// A module and its range of addresses. The addresses have 48 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub start: u64,
    pub end: u64,
    /// Name of the module's file, without folders
    pub name: String,
}

impl Mapped {
    /// Returns the number of addresses of the range.
    pub fn size(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Reads a map. Subtracts the map's size from `left`, the number of bytes that further maps may have. As in
/// uftrace, consecutive lines that name the same file are one module.
pub(super) fn map(path: &Path, left: &mut u64, warnings: &mut Vec<Warning>) -> Result<Vec<Mapped>> {
    let bytes = contents(path)?;
    *left = left
        .checked_sub(bytes.len() as u64)
        .ok_or_else(|| Error::unsuitable(path, "the maps of all sessions have more than 16 MiB"))?;
    let bytes = whole_lines(&bytes, path, warnings);
    let mut found: Vec<Mapped> = Vec::new();
    let mut offset = 0;
    for line in bytes.split(|byte| *byte == b'\n') {
        let damaged = |why: &str| Error::damaged(path, offset, why);
        let text = String::from_utf8_lossy(line);
        let mut words = text.split_whitespace();
        if let Some(range) = words.next() {
            let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
            let range = range
                .split_once('-')
                .and_then(|(start, end)| Some((hexadecimal(start)?, hexadecimal(end)?)));
            let (start, end) =
                range.ok_or_else(|| damaged("expected a line as in /proc/PID/maps"))?;
            let (start, end) = (start & ADDRESS_MASK, end & ADDRESS_MASK);
            // A line without a name, or with a name in brackets, describes memory to which no file is mapped.
            let file = words.nth(4).filter(|file| !file.starts_with('['));
            if let Some(file) = file {
                let name = file.rsplit('/').next().unwrap_or_default().to_owned();
                match found.last_mut().filter(|last| last.name == name) {
                    Some(last) => last.end = end,
                    None => found.push(Mapped { start, end, name }),
                }
            }
        }
        if found.len() > MAX_MODULES {
            return Err(damaged("too many modules"));
        }
        offset += line.len() as u64 + 1;
    }
    Ok(found)
}
