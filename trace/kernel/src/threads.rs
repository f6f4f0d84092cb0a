//! Threads of processes, from `/proc`.

use crate::error::Error;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the threads of a process.
///
/// # Errors
/// If there is no such process.
pub(crate) fn of(pid: u32) -> Result<Vec<u32>, Error> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/task")).and_then(|entries| {
        let mut threads: Vec<u32> = Vec::new();
        // The kernel limits the number of threads, and so the length of this list.
        for entry in entries {
            threads.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(threads)
    });
    match listed {
        Ok(threads) => Ok(threads),
        // If the process ends during the reading of the list, the error is ESRCH.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            Err(Error::NoProcess(pid))
        }
        Err(error) => Err(Error::System("list a process's threads", error)),
    }
}

/// Maximum number of passes over the threads of a process. The passes need a limit, because the process may
/// start threads all the time.
const MAX_PASSES: u32 = 100;

/// Passes each thread of a process to `follow`, except for the thread `except`. As soon as `follow` is called
/// for a thread, the kernel also follows the threads that this thread starts. Returns the number of threads.
///
/// # Errors
/// If there is no such process, or a thread cannot be followed.
pub(crate) fn follow(
    pid: u32,
    except: u32,
    mut follow: impl FnMut(u32) -> Result<(), Error>,
) -> Result<usize, Error> {
    let mut known = BTreeSet::from([except]);
    // Before a thread is followed, the thread may start a further thread. The next pass finds this further
    // thread.
    for _ in 0..MAX_PASSES {
        let threads = of(pid)?.into_iter();
        let fresh: Vec<u32> = threads.filter(|thread| known.insert(*thread)).collect();
        if fresh.is_empty() {
            break;
        }
        fresh.into_iter().try_for_each(&mut follow)?;
    }
    Ok(known.len() - 1)
}

/// Returns the calling thread.
pub(crate) fn current() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Names of threads, by thread id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(BTreeMap<u32, String>);

/// Maximum size of a thread's name in bytes.
const LONGEST: usize = 15;

/// Maximum number of threads whose names are kept.
const MAX_NAMES: usize = 1 << 16;

impl Names {
    /// Adds the present names of a process's threads.
    pub fn add_process(&mut self, pid: u32) {
        for thread in of(pid).unwrap_or_default() {
            if let Ok(name) = std::fs::read(format!("/proc/{pid}/task/{thread}/comm")) {
                self.add(thread, &String::from_utf8_lossy(&name));
            }
        }
    }

    /// Adds the names that the kernel noted. Each name has a line `PID NAME`, and the kernel notes one name
    /// for each thread. If several lines have the number of one thread, only one of the lines is the thread's
    /// own. A name may contain line ends, so the other lines are parts of the names of other threads.
    pub fn add_lines(&mut self, lines: &str) {
        let mut at = 0;
        // Each entry has the id of a line's thread, the offset of the thread's name, and the offset of the
        // line's end.
        let mut found: Vec<(u32, usize, usize)> = Vec::new();
        for line in lines.split_inclusive('\n') {
            let end = at + line.trim_end_matches('\n').len();
            let text = line.trim_start();
            if let Some((thread, _)) = text.split_once(' ')
                && let Ok(number) = thread.parse()
            {
                found.push((number, at + line.len() - text.len() + thread.len() + 1, end));
            }
            at += line.len();
        }
        // A name has at most this number of characters, because it has at most this number of bytes. If a
        // name was not UTF-8, each byte became at most one character.
        let fits = |from, to| lines[from..to].chars().count() <= LONGEST;
        let is_own = |line: usize| {
            let (thread, _, end) = found[line];
            let mut before = found[..line].iter().rev().take_while(|(_, name, _)| fits(*name, end));
            before.all(|(other, ..)| *other == thread)
        };
        let mut names = BTreeMap::<u32, Vec<usize>>::new();
        for (line, (thread, ..)) in found.iter().enumerate() {
            names.entry(*thread).or_default().push(line);
        }
        for (thread, mut all) in names {
            if all.len() > 1 {
                all.retain(|line| is_own(*line));
            }
            // If several lines can be the thread's line, nobody knows the right line.
            if let [line] = all[..] {
                let (_, name, end) = found[line];
                self.add(thread, &lines[name..end]);
            }
        }
    }

    /// Adds a name; a later name of a thread replaces an earlier one.
    pub fn add(&mut self, thread: u32, name: &str) {
        // A program chooses its threads' names, and a line end in a name would begin another entry.
        let name = name.trim_end_matches('\n').replace(|c: char| c.is_control(), "?");
        if self.0.len() < MAX_NAMES && !name.is_empty() && name != "<...>" {
            self.0.insert(thread, name);
        }
    }

    /// Returns the names as the lines of a trace.dat.
    pub fn to_lines(&self) -> String {
        self.0.iter().map(|(thread, name)| format!("{thread} {name}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_whatever_the_program_chose() {
        let mut names = Names::default();
        names.add_lines("12 vcpu 0\nnoise\n13 <...>\n");
        names.add(12, "evil\n1 init\n");
        names.add(14, "\n");
        assert_eq!(names.to_lines(), "12 evil?1 init\n");
        // Each of the two lines of thread 16 can be a part of the name of another thread.
        names.add_lines("15 x\n16 root\n14 y\n16 other\n");
        assert_eq!(names.to_lines(), "12 evil?1 init\n14 y\n15 x\n");
    }

    #[test]
    fn a_name_with_a_line_end_hides_no_other_threads_name() {
        // Thread 15 has the name "x\n16 root", which the kernel prints unchanged.
        for lines in [
            "15 x\n16 root\n16 victim\n",
            "16 victim\n15 x\n16 root\n",
            "15 x\n16 root\n14 another one\n16 victim\n",
        ] {
            let mut names = Names::default();
            names.add_lines(lines);
            assert!(names.to_lines().ends_with("15 x\n16 victim\n"), "{names:?}");
        }
    }

    #[test]
    fn threads_of_a_process_are_listed_and_an_ended_one_is_named() {
        assert!(of(std::process::id()).unwrap().contains(&current()));
        assert!(matches!(of(u32::MAX), Err(Error::NoProcess(u32::MAX))));
    }
}
