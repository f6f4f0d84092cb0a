//! Steps of a long run, and the table of these steps. Steps are commands that run one after the other. The
//! user sees the output of a command at once.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};
use tempfile::TempDir;
use vmm_sys_util::signal::register_signal_handler;

use crate::command::parse;
use crate::notes::{Notes, table};
use crate::probe::Machine;

/// The longest time that tests may take
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Limit {
    /// Kill a step whose tests have run for this number of minutes. Builds have no limit
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

/// Time for which a step's remaining processes may continue after the step, before they are killed.
const GRACE: Duration = Duration::from_secs(2);

/// Environment variable with the number of tests that a test program runs at the same time.
const THREADS: &str = "RUST_TEST_THREADS";

/// Verdict on a step that succeeded.
pub const OK: &str = "ok";

/// A run of steps.
pub struct Steps<'a> {
    /// Folder in which the commands run
    root: &'a Path,
    /// Capabilities that the commands can use
    pub machine: Machine,
    /// Temporary folder of the tests. Killed tests leave files in this folder
    temporary: TempDir,
    limit: Duration,
    table: Table,
    /// Steps that failed, with the lines of the output that explain the failure
    failed: Vec<String>,
    /// Tests that are left to the full run
    ignored: Vec<String>,
}

/// Results of tests.
#[derive(Default)]
pub struct Ran {
    /// Duration of the build; zero if the tests were not built separately
    pub build: Duration,
    /// Duration of the tests
    pub run: Duration,
    /// Whether the tests were built
    pub built: bool,
    /// Whether the tests were built, ran and succeeded
    pub ok: bool,
    /// Output of the tests
    pub output: String,
    /// Reports of the tests about this machine
    pub notes: Notes,
}

impl Ran {
    /// Returns the verdict on a step that runs tests. If no test has run, then the step has failed.
    pub fn verdict(&self) -> &'static str {
        let mut passed = self.output.lines().filter_map(|line| line.split("result: ok. ").nth(1));
        let some = passed.clone().next().is_none() || passed.any(|rest| !rest.starts_with("0 "));
        match (self.built, self.ok, some) {
            (false, ..) => "FAILED to build",
            (_, false, _) => "FAILED",
            (_, _, false) => "FAILED: no such test",
            _ => OK,
        }
    }
}

impl<'a> Steps<'a> {
    /// Begins a run. From now on, SIGINT, SIGTERM and SIGHUP end the run, and all processes that the run has
    /// started.
    ///
    /// # Errors
    /// If there is no place for temporary files, or if the kernel is too old and lacks an interface that this
    /// function uses.
    pub fn begin(root: &'a Path, machine: Machine, limit: Limit) -> Result<Self> {
        // If a process that a step has started ends, then its children become children of this process. In
        // this way, this process finds all processes that a step has left running.
        set_child_subreaper(Some(rustix::process::getpid()))?;
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            register_signal_handler(signal.as_raw(), on_signal)?;
        }
        // The folder is open to all users, like the system's own, because some tests run programs as other
        // users.
        let temporary = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o1777))
            .tempdir()
            .context("cannot make a temporary folder")?;
        let table = table(["step", "build", "run", ""]);
        let limit = Duration::from_secs(60 * limit.limit);
        Ok(Steps {
            root,
            machine,
            temporary,
            limit,
            table,
            failed: Vec::new(),
            ignored: Vec::new(),
        })
    }

    /// Runs a command that builds and checks. Returns false if the command failed.
    ///
    /// # Errors
    /// If the command cannot be started, or a signal came.
    pub fn check(&mut self, line: &str) -> Result<bool> {
        let (ok, build) = self.run(line, line, None)?;
        let ran = Ran { build, built: ok, ok, ..Ran::default() };
        self.row(line, &ran, if ok { OK } else { "FAILED" }, ok);
        Ok(ok)
    }

    /// Runs tests. If cargo can build the tests separately, then this function builds the tests first. The
    /// caller adds the row to the table.
    ///
    /// # Errors
    /// If the tests cannot be started, or a signal came.
    pub fn test(&mut self, name: &str, line: &str) -> Result<Ran> {
        let with = |option| line.replacen(" test ", &format!(" test {option} "), 1);
        let (mut built, mut build) = (true, Duration::ZERO);
        if with("") != line {
            (built, build) = self.run(&format!("{name}: build"), &with("--no-run"), None)?;
        }
        let mut ran = Ran { build, built, ..Ran::default() };
        if built {
            let files = ["output", "capabilities"].map(|name| self.temporary.path().join(name));
            files.iter().for_each(|file| drop(fs::remove_file(file)));
            (ran.ok, ran.run) = self.run(name, &with("--no-fail-fast"), Some(self.limit))?;
            let [output, notes] = files.map(|file| fs::read(file).unwrap_or_default());
            ran.output = String::from_utf8_lossy(&output).into_owned();
            ran.notes = Notes::read(&String::from_utf8_lossy(&notes));
        }
        Ok(ran)
    }

    /// Adds a row to the table.
    pub fn row(&mut self, name: &str, ran: &Ran, verdict: &str, good: bool) {
        let time = |time: Duration| match time {
            Duration::ZERO => String::new(),
            time => format!("{:.1} s", time.as_secs_f64()),
        };
        self.table.add_row([name, &time(ran.build), &time(ran.run), verdict]);
        let is_ignored = |line: &&str| line.starts_with("test ") && line.contains(" ... ignored");
        self.ignored.extend(ran.output.lines().filter(is_ignored).map(str::to_owned));
        if !good {
            let has_ended = |test: &str| ran.output.contains(&format!("{test} ... "));
            let is_why = |line: &&str| {
                let slow = line.split_once(" has been running for over ");
                line.starts_with("test ") && line.ends_with("FAILED")
                    || slow.is_some_and(|(test, _)| !has_ended(test))
                    || line.starts_with("error: test failed")
            };
            let lines = ran.output.lines().filter(is_why).chain(panics(&ran.output));
            let why = lines.map(|line| format!("\n    {line:.1000}"));
            self.failed.push(format!("{name}: {verdict}{}", why.collect::<String>()));
        }
    }

    /// Adds a row for a step that this machine cannot run.
    pub fn skip(&mut self, name: &str, why: &str) {
        println!("==> {name}\n    NOT RUN: {why}");
        self.table.add_row([name, "", "", &format!("NOT RUN: {why}")]);
    }

    /// Adds a failure that does not belong to a step.
    pub fn fail(&mut self, why: String) {
        self.failed.push(why);
    }

    /// Prints the table, and repeats all failures. Returns true if nothing failed.
    pub fn conclude(&self) -> bool {
        println!("\n{}", self.table);
        self.ignored.iter().for_each(|test| println!("{test}"));
        self.failed.iter().for_each(|failure| println!("FAILED: {failure}"));
        println!("result: {}", if self.failed.is_empty() { OK } else { "FAILED" });
        self.failed.is_empty()
    }

    /// Runs a command to its end, or to its limit. The output of a command with a limit is copied into a
    /// file, and processes that the command leaves running are killed. Returns whether the command succeeded,
    /// and its duration.
    fn run(&self, name: &str, line: &str, limit: Option<Duration>) -> Result<(bool, Duration)> {
        println!("==> {name}");
        let begin = Instant::now();
        let mut command = parse(line, &self.machine.prefix);
        command
            .current_dir(self.root)
            .stdin(Stdio::null())
            .env("PATH", self.machine.search_path())
            .env("TMPDIR", self.temporary.path())
            .env("HYPERTRACE_ABSENT", self.machine.absent())
            .env("HYPERTRACE_CAPABILITIES", self.temporary.path().join("capabilities"));
        let mut tee = None;
        if limit.is_some() {
            let (reader, writer) = std::io::pipe()?;
            let mut copy = Command::new("tee");
            copy.arg(self.temporary.path().join("output")).stdin(reader);
            if env::var_os(THREADS).is_none() {
                // One and a half times as many tests run at once as the machine has CPUs, because tests also
                // wait for guests, and for some time to pass.
                let cpus = available_parallelism().map_or(1, usize::from);
                command.env(THREADS, (cpus + cpus.div_ceil(2)).to_string());
            }
            tee = Some(copy.spawn().context("cannot start tee")?);
            command.stdout(writer.try_clone()?).stderr(writer);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {line}"))?;
        // The command holds the writing end of the pipe. Without this drop, tee would never end.
        drop(command);

        let ended = wait(&mut child, limit.unwrap_or(Duration::MAX))?;
        let grace = if ended.is_some() { GRACE } else { Duration::ZERO };
        let mut killed = BTreeSet::new();
        if let Some(mut tee) = tee {
            killed = end_descendants(Some(tee.id()), grace);
            let _ = tee.wait();
        } else if ended.is_none() {
            let _ = child.kill();
        }
        if INTERRUPTED.load(Relaxed) {
            bail!("interrupted");
        }
        let took = begin.elapsed();
        match ended {
            Some(status) if !status.success() => println!("    FAILED: {status}"),
            Some(_) => {}
            None => println!("    FAILED: it took longer than --limit allows"),
        }
        if !killed.is_empty() {
            println!("    killed: {}", Vec::from_iter(killed).join(", "));
        }
        Ok((ended.is_some_and(|status| status.success()), took))
    }
}

/// Whether SIGINT, SIGTERM or SIGHUP came.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    INTERRUPTED.store(true, Relaxed);
}

/// Waits for the end of a command. Returns `None` after the limit, or if a signal came.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    while begin.elapsed() < limit && !INTERRUPTED.load(Relaxed) {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

/// Waits until all descendants of this process have ended, except for the child `except`. After some time,
/// kills the descendants that are left. Returns the killed processes.
fn end_descendants(except: Option<u32>, grace: Duration) -> BTreeSet<String> {
    let begin = Instant::now();
    let mut killed = BTreeSet::new();
    loop {
        let mut children = children();
        children.retain(|child| Some(child.as_raw_nonzero().get() as u32) != except);
        // After some time, the function gives up on processes that SIGKILL does not end, because they wait
        // for something in the kernel.
        if children.is_empty() || begin.elapsed() > grace + 5 * GRACE {
            return killed;
        }
        for child in children {
            let is_running = matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None));
            if is_running && begin.elapsed() >= grace {
                let id = child.as_raw_nonzero();
                let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
                killed.insert(format!("{} ({id})", name.trim()));
                let _ = kill_process(child, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the children of this process.
fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    let ids = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<i32>>()
    });
    ids.filter_map(Pid::from_raw).collect()
}

/// Returns the panic messages of tests. Other output of the tests is left out, and so are the stacks.
fn panics(output: &str) -> impl Iterator<Item = &str> {
    let mut is_message = false;
    output.lines().filter(move |line| {
        is_message |= line.starts_with("thread '") && line.contains(" panicked at ");
        is_message &= !line.is_empty() && *line != "stack backtrace:";
        is_message
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_test_support::child::in_own_process;

    fn script(folder: &Path, text: &str) -> String {
        fs::write(folder.join("script"), text).unwrap();
        "sh script".to_owned()
    }

    /// Returns true if the process exists and is not a zombie.
    fn lives(process: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn tests_beyond_the_limit_are_killed_with_what_has_left_their_group() {
        in_own_process(|| {
            let folder = tempfile::tempdir().unwrap();
            let machine = Machine::default();
            let mut steps = Steps::begin(folder.path(), machine, Limit { limit: 1 }).unwrap();
            steps.limit = Duration::from_millis(500);
            let text = "echo test y has been running for over 60 seconds; echo test y ... ok\n\
                        setsid sh -c 'echo $$ >id; echo test x has been running for over 60 seconds; \
                        exec sleep 1000' & exec sleep 1000";
            let line = script(folder.path(), text);

            let ran = steps.test("hangs", &line).unwrap();

            assert_eq!((ran.ok, ran.verdict()), (false, "FAILED"));
            assert!(!lives(fs::read_to_string(folder.path().join("id")).unwrap().trim()));
            steps.row("hangs", &ran, ran.verdict(), false);
            let why = "hangs: FAILED\n    test x has been running for over 60 seconds";
            assert_eq!(steps.failed, [why]);
        });
    }

    #[test]
    fn what_a_step_leaves_running_is_killed_and_its_output_is_kept() {
        in_own_process(|| {
            let folder = tempfile::tempdir().unwrap();
            let machine = Machine::default();
            let mut steps = Steps::begin(folder.path(), machine, Limit { limit: 1 }).unwrap();
            let text = "sleep 1000 & echo $! >id; echo one; echo two >&2\n\
                        printf 'used\\tkvm\\tx\\n' >$HYPERTRACE_CAPABILITIES";
            let line = script(folder.path(), text);

            let ran = steps.test("leaves", &line).unwrap();

            assert_eq!((ran.ok, ran.verdict(), ran.output.as_str()), (true, OK, "one\ntwo\n"));
            assert!(ran.notes.used.contains_key("kvm"));
            assert!(!lives(fs::read_to_string(folder.path().join("id")).unwrap().trim()));
        });
    }

    #[test]
    fn a_failures_message_is_said_without_its_stack() {
        let output = "---- x stdout ----\nmany lines\n\n\
                      thread 'x' (7) panicked at tests/x.rs:1:2:\nassertion failed\n  left: 1\n\
                      stack backtrace:\n   0: f\n\nfailures:\n    x\n";
        let message =
            ["thread 'x' (7) panicked at tests/x.rs:1:2:", "assertion failed", "  left: 1"];

        assert_eq!(panics(output).collect::<Vec<_>>(), message);
    }

    #[test]
    fn a_filter_that_selects_no_test_is_a_failure() {
        let ran = |output: &str| Ran {
            built: true,
            ok: true,
            output: output.to_owned(),
            ..Ran::default()
        };
        let none = "test result: ok. 0 passed; 0 failed\n";

        assert_eq!(ran(none).verdict(), "FAILED: no such test");
        assert_eq!(ran(&format!("{none}test result: ok. 2 passed; 0 failed\n")).verdict(), OK);
    }
}
