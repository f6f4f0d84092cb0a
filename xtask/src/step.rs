//! One step of a long run: a command with its name, its progress, its duration, and its output if it fails.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Period of the progress lines of a running step, if stderr is not a terminal.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// Time that a step waits for the output of a process that its command left running.
const LEFTOVERS: Duration = Duration::from_secs(2);

/// Result of a step.
pub struct Finished {
    /// The command ended by itself, with status 0
    pub ok: bool,
    /// The command was killed: it printed nothing for too long
    pub killed: bool,
    /// Stdout and stderr of the command, in the order written
    pub output: String,
}

/// Longest silence of a step that runs tests
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Patience {
    /// Kill tests that have printed nothing for this long: a test that hangs prints nothing. Builds have no limit
    #[arg(long, value_name = "MINUTES", default_value_t = SILENCE.as_secs() / 60, value_parser = clap::value_parser!(u64).range(1..))]
    silence: u64,
}

impl Patience {
    /// Returns the longest silence of a step that is not killed.
    pub fn silence(self) -> Duration {
        Duration::from_secs(60 * self.silence)
    }
}

/// The default of [`Patience`], for steps that have no options.
pub const SILENCE: Duration = Duration::from_secs(600);

/// The limit of a step that only builds: none. A linker is silent for as long as a busy machine makes it.
pub const BUILD: Duration = Duration::MAX;

/// Prints that a step cannot run on this machine.
pub fn skipped(name: &str, why: &str) {
    println!("==> {name}\n    NOT RUN: {why}");
}

/// Runs a command to its end and shows its progress. Prints its output only if it failed. Kills it if it prints no
/// line for as long as `silence`; never with [`BUILD`].
///
/// # Errors
/// If the command cannot be started. A command that fails is not an error.
pub fn run(name: &str, mut command: Command, silence: Duration) -> Result<Finished> {
    println!("==> {name}");
    let begin = Instant::now();
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let program = command.get_program().display().to_string();
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    // The command holds the pipe's writing end: the reader below would not see the end before this is dropped.
    drop(command);

    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });

    let mut output = Vec::new();
    let mut progress = Progress::new();
    let mut ended: Option<Instant> = None;
    let mut killed = false;
    let mut heard = begin;
    loop {
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => {
                heard = Instant::now();
                progress.last = String::from_utf8_lossy(&line).trim().to_owned();
                output.extend_from_slice(&line);
                output.push(b'\n');
            }
            // Every writer has closed the pipe: the command and the processes that it started.
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(50)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ended.is_none() {
            ended = child.try_wait()?.map(|_| Instant::now());
        }
        if ended.is_some_and(|at| at.elapsed() > LEFTOVERS) {
            break;
        }
        if !killed && ended.is_none() && heard.elapsed() > silence {
            killed = true;
            kill_with_descendants(&mut child);
        }
        progress.show(begin.elapsed());
    }
    progress.clear();

    let output = String::from_utf8_lossy(&output).into_owned();
    let took = duration(begin.elapsed());
    // It ended: the loop above waits for that.
    let status = child.wait()?;
    let ok = status.success() && !killed;
    if ok {
        println!("    ok in {took}");
        return Ok(Finished { ok, killed, output });
    }
    output.lines().for_each(|line| println!("    | {line}"));
    if killed {
        let silence = duration(silence);
        println!("    FAILED: killed after {took}: no output for {silence} (--silence MINUTES)");
    } else {
        println!("    FAILED in {took}: {status}");
    }
    Ok(Finished { ok, killed, output })
}

/// Formats a duration as `7.3 s` or `2 min 05 s`.
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 60.. => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// Progress of a step: a line that changes on a terminal, an occasional line elsewhere.
struct Progress {
    last: String,
    shown: Instant,
    terminal: bool,
}

impl Progress {
    fn new() -> Self {
        Progress {
            last: String::new(),
            shown: Instant::now(),
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, elapsed: Duration) {
        let pause = if self.terminal { Duration::from_millis(500) } else { HEARTBEAT };
        if self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        // A test's output is arbitrary; it may contain control characters.
        let last = self.last.chars().filter(|c| !c.is_control()).take(90);
        let line = format!("    {}  {}", duration(elapsed), last.collect::<String>());
        // A failure to print progress is ignored.
        let _ = match self.terminal {
            true => write!(std::io::stderr(), "\r\x1b[2K{line}"),
            false => writeln!(std::io::stderr(), "{line}"),
        };
    }

    fn clear(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

/// Kills a command that hangs, and the programs that it started: without cargo, the test would continue to hang. (With
/// a process group, a terminal's Ctrl-C would not reach them.)
fn kill_with_descendants(child: &mut Child) {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = folders
        .filter_map(|folder| {
            let process = folder.file_name().to_str()?.parse().ok()?;
            Some((process, parent_of(&std::fs::read_to_string(folder.path().join("stat")).ok()?)?))
        })
        .collect();
    let mut doomed = vec![child.id()];
    let mut next = 0;
    while let Some(&doomed_parent) = doomed.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == doomed_parent);
        let mut new: Vec<u32> = children.map(|(process, _)| *process).collect();
        // Processes ended while the list was read, so it may have circles.
        new.retain(|process| !doomed.contains(process));
        doomed.extend(new);
        next += 1;
    }
    let _ = Command::new("kill").arg("-KILL").args(doomed.iter().map(u32::to_string)).status();
    let _ = child.kill();
}

/// Returns the parent in `/proc/PID/stat`: the second word after the name, which is in parentheses and may contain some.
fn parent_of(stat: &str) -> Option<u32> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_kept_in_the_order_written() {
        let script = "echo one; echo two >&2; echo three";
        let finished = run("order", shell(script), Duration::from_secs(60)).unwrap();
        assert!(finished.ok);
        assert_eq!(finished.output, "one\ntwo\nthree\n");
    }

    #[test]
    fn a_status_other_than_0_is_a_failure() {
        let finished = run("fails", shell("exit 3"), Duration::from_secs(60)).unwrap();
        assert!(!finished.ok);
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_what_it_started() {
        let script = "sleep 1000 & echo $!; sleep 1000";
        let finished = run("hangs", shell(script), Duration::from_millis(300)).unwrap();
        assert!(!finished.ok && finished.killed);
        let grandchild: u32 = finished.output.trim().parse().unwrap();
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat"));
            // A zombie that its new parent has not collected yet is dead.
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let begin = Instant::now();
        while lives() {
            assert!(begin.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_command_that_prints_all_the_time_may_take_long() {
        let script = "for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 0.2; done";
        let finished = run("slow", shell(script), Duration::from_millis(1500)).unwrap();
        assert!(finished.ok && !finished.killed);
    }

    #[test]
    fn a_process_that_keeps_the_pipe_does_not_delay_the_step() {
        let begin = Instant::now();
        let finished = run("leaves", shell("sleep 8 & exit 0"), Duration::from_secs(60)).unwrap();
        assert!(finished.ok);
        assert!(begin.elapsed() < Duration::from_secs(7));
    }

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_parent() {
        assert_eq!(parent_of("42 (a) R 7 (b)) S 17 42 42 0"), Some(17));
        assert_eq!(parent_of("42 (sh"), None);
    }

    #[test]
    fn durations_are_formatted_with_their_units() {
        assert_eq!(duration(Duration::from_millis(7_340)), "7.3 s");
        assert_eq!(duration(Duration::from_secs(125)), "2 min 05 s");
    }
}
