//! Parts of a benchmark that run in a child process, so that the kernel frees their resources when the child
//! ends.
//!
//! A child prints `ready`, then answers each line on its stdin with one line. The child ends when its stdin
//! ends, so that no child outlives its parent.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};

/// Number of turns of each part.
pub const TURNS: u64 = 20_000;

/// Process that answers lines.
pub struct Child {
    process: process::Child,
    is_vm: bool,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a child and waits until it is ready.
    ///
    /// # Errors
    /// If the child cannot be started, or ends before the child is ready. The error is the child's output on
    /// stderr.
    pub fn start(command: &mut Command) -> Result<Child> {
        Child::spawn(command, false)
    }

    /// Starts a VM whose console answers lines. Dropping this value kills the VM.
    ///
    /// # Errors
    /// As for [`Child::start`]. If the guest prints another line before the guest is ready, then this line is
    /// the error.
    pub fn start_vm(command: &mut Command) -> Result<Child> {
        Child::spawn(command, true)
    }

    fn spawn(command: &mut Command, is_vm: bool) -> Result<Child> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().context("a pipe is missing")?;
        let mut child = Child { process, is_vm, stdin, stdout: BufReader::new(stdout) };
        let said = child.line()?;
        ensure!(said == "ready", "{name} said {said:?}");
        Ok(child)
    }

    /// Starts this program again, with `--serve`.
    pub fn of_this_program() -> Result<Child> {
        Child::start(Command::new(std::env::current_exe()?).arg("--serve"))
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line and returns the answer.
    pub fn ask(&mut self, what: &str) -> Result<String> {
        if let Some(stdin) = &mut self.stdin {
            // If the child has ended, then the error is ignored here, because reading the child's answer
            // fails.
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
        if self.is_vm {
            // If the process has ended already, then the error of the kill is ignored.
            let _ = self.process.kill();
        }
        // The process ends, because its stdin is closed.
        let _ = self.process.wait();
    }
}
