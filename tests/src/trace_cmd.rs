//! trace-cmd, which checks that a kernel.dat is a valid trace.dat.

use std::path::Path;
use std::process::Command;

use crate::capability;

/// Names of two releases of trace-cmd. The releases read files in different ways.
const PROGRAMS: [&str; 2] = ["trace-cmd", "trace-cmd-3.3"];

/// Event, as a line of `trace-cmd report` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// Name of the thread.
    pub comm: String,
    /// Id of the thread.
    pub thread: u32,
    /// Time in nanoseconds.
    pub time: u64,
    /// Name of the event.
    pub name: String,
    /// Text of the fields, as the event's format prints them.
    pub fields: String,
}

/// Contents of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Events of the first buffer, in order of time.
    pub events: Vec<Shown>,
    /// Number of places between these events where events are missing. The kernel does not always report how
    /// many events are missing.
    pub gaps: usize,
    /// Events of the second buffer, about all threads.
    pub cpus: Vec<Shown>,
}

/// Reads a file that lacks no events, as [`contents`] does.
#[track_caller]
pub fn read(file: &Path) -> Option<Vec<Shown>> {
    let read = contents(file)?;
    assert_eq!(read.gaps, 0, "{}", file.display());
    Some(read.events)
}

/// Reads a file with each release of trace-cmd that this machine has, and asserts that they agree and do not
/// complain. Returns the contents, or `None`, with a report, if this machine has no release.
#[track_caller]
pub fn contents(file: &Path) -> Option<Contents> {
    let mut read: Option<Contents> = None;
    for name in PROGRAMS {
        let Some(program) = capability::program(name) else { continue };
        // -t prints nanoseconds; -N uses the formats of the file, not of plugins.
        let out = Command::new(program).args(["report", "-t", "-N"]).arg(file).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{name} {}: {said}", file.display());
        let text = String::from_utf8_lossy(&out.stdout);
        let mut contents = Contents::default();
        // After a gap, the next event belongs to the buffer of the gap. Only the line of the gap contains the
        // buffer's name.
        let mut after_gap = false;
        for line in text.lines().filter(|line| !line.starts_with("cpus=")) {
            let of_cpus = line.strip_prefix("cpus:");
            // `CPU:0 [1234 EVENTS DROPPED]` or `CPU:0 [EVENTS DROPPED]`
            if line.ends_with("EVENTS DROPPED]") {
                contents.gaps += usize::from(of_cpus.is_none());
                after_gap = of_cpus.is_some();
                continue;
            }
            let event = parse(of_cpus.unwrap_or(line));
            let event = event.unwrap_or_else(|| panic!("{name} {}: {line:?}", file.display()));
            let follows_gap = std::mem::take(&mut after_gap);
            match of_cpus.is_some() || follows_gap {
                true => contents.cpus.push(event),
                false => contents.events.push(event),
            }
        }
        capability::used(name);
        if let Some(other) = &read {
            assert_eq!(other, &contents, "{name} reads something else");
        }
        read = Some(contents);
    }
    read
}

/// Reads several files in a common order, as [`contents`] reads a file. Returns each event with the index of
/// the event's file, without the events of a second buffer.
#[track_caller]
pub fn merged(files: &[&Path]) -> Option<Vec<(usize, Shown)>> {
    let mut read: Option<Vec<(usize, Shown)>> = None;
    for name in PROGRAMS {
        let Some(program) = capability::program(name) else { continue };
        let mut command = Command::new(program);
        command.args(["report", "-t", "-N"]);
        for file in files {
            command.arg("-i").arg(file);
        }
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{name} {files:?}: {said}");
        let mut events = Vec::new();
        // The event after a gap belongs to the gap's file, but only the gap's line contains the file's name.
        let mut gap = None;
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            // A line is the name of a file, followed by the event.
            let of = |file: &&Path| {
                let name = file.file_name()?.to_str()?;
                line.split_once(": ").filter(|(of, _)| of.ends_with(name)).map(|(_, line)| line)
            };
            let found = files.iter().enumerate().find_map(|(n, file)| Some((n, of(file)?)));
            let Some((n, line)) = found.or_else(|| Some((gap.take()?, line))) else { continue };
            if line.ends_with("DROPPED]") {
                gap = Some(n);
            } else if !line.starts_with("cpus=") {
                let event = parse(line).unwrap_or_else(|| panic!("{name}: {line:?}"));
                events.push((n, event));
            }
        }
        capability::used(name);
        if let Some(other) = &read {
            assert_eq!(other, &events, "{name} reads something else");
        }
        read = Some(events);
    }
    read
}

/// Parses `   vcpu0-123   [000] d..2. 12.345678901: kvm_mmio:   mmio write len 8`.
fn parse(line: &str) -> Option<Shown> {
    let (task, rest) = line.split_once(" [")?;
    let (comm, thread) = task.trim().rsplit_once('-')?;
    let (_, rest) = rest.split_once("] ")?;
    let (head, rest) = rest.split_once(": ")?;
    let (seconds, ns) = head.split_whitespace().last()?.split_once('.')?;
    let (name, fields) = rest.trim_start().split_once(':')?;
    Some(Shown {
        comm: comm.to_owned(),
        thread: thread.parse().ok()?,
        time: seconds.parse::<u64>().ok()? * 1_000_000_000 + ns.parse::<u64>().ok()?,
        name: name.to_owned(),
        fields: fields.trim().to_owned(),
    })
}
