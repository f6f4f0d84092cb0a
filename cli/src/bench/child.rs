//! Parts of a benchmark that run in a child process, so that the kernel frees
//! their resources when it ends.
//!
//! A child prints `ready`, then answers each line on its stdin with one line. It
//! ends when its stdin does, so it cannot outlive its parent.

use super::ring::ticks_per_ns;
use super::sigsegv;
use super::trace::On;
use super::{emulated, events};
use anyhow::{Context, Result, bail, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace_trace::backend::{self, Backends, ftrace};
use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};

/// Process that answers lines.
pub struct Child {
    process: process::Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started, or ends first: the error is its output on stderr.
    pub fn start(command: &mut Command) -> Result<Child> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().context("a pipe is missing")?;
        let mut child = Child { process, stdin, stdout: BufReader::new(stdout) };
        let said = child.line()?;
        ensure!(said == "ready", "{name} said {said:?}");
        Ok(child)
    }

    /// Starts this program again, in [`serve`].
    pub fn of_this_program() -> Result<Child> {
        Child::start(Command::new(std::env::current_exe()?).args(["bench", "--serve"]))
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line and returns the answer.
    pub fn ask(&mut self, what: &str) -> Result<String> {
        if let Some(stdin) = &mut self.stdin {
            // If the child has ended, reading its answer fails.
            let _ = stdin.write_all(format!("{what}\n").as_bytes());
        }
        let answer = self.line()?;
        match answer.strip_prefix("error: ") {
            Some(why) => bail!("{why}"),
            None => Ok(answer),
        }
    }

    /// Sends a line and returns the answer, in nanoseconds.
    pub fn ns(&mut self, what: &str) -> Result<f64> {
        let answer = self.ask(what)?;
        answer.parse().with_context(|| format!("the answer to {what} is {answer:?}"))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? > 0 {
            return Ok(line.trim_end().to_owned());
        }
        let mut why = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            stderr.read_to_string(&mut why)?;
        }
        let why = why.trim();
        bail!("{}", if why.is_empty() { "the child ended without a message" } else { why });
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // Its stdin is closed, so it ends.
        let _ = self.process.wait();
    }
}

/// Answers lines on stdin until it is closed: the main function of a child.
///
/// # Errors
/// If stdin cannot be read.
#[expect(clippy::print_stdout, reason = "a child may panic if its parent is gone")]
pub fn serve() -> Result<()> {
    let ticks_per_ns = ticks_per_ns();
    println!("ready");
    for line in io::stdin().lines() {
        match answer(&line?) {
            Ok((ticks, turns)) => println!("{}", ticks as f64 / ticks_per_ns / turns as f64),
            Err(why) => println!("error: {why:#}"),
        }
    }
    Ok(())
}

/// Runs the part that a line names. Returns ticks and turns.
fn answer(line: &str) -> Result<(u64, u64)> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("marker", instance) => marker(Path::new(instance)),
        ("ftrace", instance) => ftrace(Path::new(instance)),
        ("emulated", part) => emulated::answer(part),
        ("uprobe", _) => Ok(uprobe()),
        ("sdt", _) => Ok(sdt()),
        ("sigsegv", _) => sigsegv::serve(),
        _ => bail!("no part {line:?}"),
    }
}

/// Turns of each part.
pub const TURNS: u64 = 20_000;
/// Arguments of every event, so that its text is the same each time.
const ARGUMENTS: (u64, u64) = (123_456, 7_890_123);

fn text() -> String {
    format!("bench_pair a {} b {}", ARGUMENTS.0, ARGUMENTS.1)
}

fn timed(mut turn: impl FnMut()) -> (u64, u64) {
    let start = ticks();
    for _ in 0..TURNS {
        turn();
    }
    (ticks() - start, TURNS)
}

/// Measures the bare write of an event's text.
fn marker(instance: &Path) -> Result<(u64, u64)> {
    let path = instance.join("trace_marker");
    let mut file = OpenOptions::new().write(true).open(&path)?;
    let text = text();
    let mut short = 0u64;
    let time = timed(|| {
        let wrote = file.write(black_box(text.as_bytes()));
        short += u64::from(wrote.ok() != Some(text.len()));
    });
    ensure!(short == 0, "{short} writes to {} failed", path.display());
    Ok(time)
}

/// Measures an event that goes to the kernel's trace.
fn ftrace(instance: &Path) -> Result<(u64, u64)> {
    ftrace::open(instance)?;
    backend::add(Backends::FTRACE);
    let on = On::new(&events::bench_pair::EVENT);
    // The event must write exactly the bytes that the floor writes.
    fs::write(instance.join("trace"), "")?;
    fire();
    fs::write(instance.join("trace_marker"), text())?;
    let trace = fs::read_to_string(instance.join("trace"))?;
    let same = trace.matches(&format!(": {}\n", text())).count();
    let time = timed(fire);
    drop(on);
    backend::remove(Backends::FTRACE);
    ensure!(same == 2, "an event and its text are not the same in the trace:\n{trace}");
    ensure!(ftrace::lost() == 0, "{} events lost", ftrace::lost());
    Ok(time)
}

fn fire() {
    events::bench_pair(black_box(ARGUMENTS.0), black_box(ARGUMENTS.1));
}

fn uprobe() -> (u64, u64) {
    timed(|| probed(black_box(0)))
}

/// Function with the uprobe. It keeps a register across a call, so that it
/// begins with a `push`: the kernel emulates that instruction. It has to
/// single-step most others, which takes far longer.
#[inline(never)]
pub fn probed(n: u64) {
    nothing();
    black_box(n);
}

#[inline(never)]
fn nothing() {
    black_box(());
}

/// Measures an SDT probe, which fires if a tracer is attached.
fn sdt() -> (u64, u64) {
    backend::add(Backends::SDT);
    let on = On::new(&events::bench_pair::EVENT);
    let time = timed(fire);
    drop(on);
    backend::remove(Backends::SDT);
    time
}
