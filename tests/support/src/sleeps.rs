//! Counts of how often the threads of a process have slept: a measure of the threads' cost that does not
//! change with the machine's load.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Returns for each name of a thread of a process how often the thread sleeps in this time. Threads of the
/// same name are added up.
pub fn sleeps_in(time: Duration, pid: u32) -> BTreeMap<String, u64> {
    let before = sleeps(pid);
    thread::sleep(time);
    let mut sums = BTreeMap::new();
    for (task, (name, after)) in sleeps(pid) {
        let before = before.get(&task).map_or(0, |(_, before)| *before);
        *sums.entry(name).or_default() += after - before;
    }
    sums
}

fn sleeps(pid: u32) -> BTreeMap<String, (String, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    // A thread may end meanwhile.
    tasks
        .filter_map(|task| Some((task.file_name().into_string().ok()?, of(&task.path())?)))
        .collect()
}

fn of(task: &Path) -> Option<(String, u64)> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((field("Name:")?.to_owned(), field("voluntary_ctxt_switches:")?.parse().ok()?))
}
