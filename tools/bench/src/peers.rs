//! Rows of other tracers, for machines that have these tracers. Each row measures an event with the same two
//! numbers.

use super::c;
use super::child::{Child, TURNS};
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use anyhow::{Context as _, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read};
use std::process::{self, ChildStdout, Command, Stdio};

pub const ROWS: &[Row] = &[
    row("lttng_ust", lttng, "LTTng-UST, two `u64`, to a file on tmpfs; a full buffer blocks").note(
        "LTTng-UST 2.13 or later (`lttng-tools`, `liblttng-ust-dev` and a C compiler). A \
         provider in C is compiled and traced by a separate session daemon: 8 buffers of \
         1 MiB for each CPU, so nothing is lost. A million events, 22 bytes each in its \
         file; LTTng must report that it discarded none. Only the program's loop is \
         timed, not the daemon's remaining writes.",
    ),
    row("uftrace_pg", uftrace, "a call of an empty function built with `-pg`, recorded by uftrace")
        .over(("c_function_call", c::function_call), ">= 3 x c_function_call")
        .note(
            "Its entry and its exit are recorded to files on tmpfs, and all of them must be \
             there afterwards.",
        ),
    row(
        "sdt_bpftrace",
        bpftrace,
        "the `sdt` backend with `bpftrace` attached to the event's probe, which it counts",
    )
    .note("Its count must be right."),
];

/// Files of the program that traces with LTTng-UST.
const SOURCES: [(&str, &str); 3] = [
    ("lttng.sh", include_str!("lttng/lttng.sh")),
    ("lttng.c", include_str!("lttng/lttng.c")),
    ("lttng.h", include_str!("lttng/lttng.h")),
];
const LTTNG_EVENTS: u64 = 1_000_000;
/// Minimum size of an event in LTTng's file in bytes: a header of 4 bytes, and two fields.
const LTTNG_BYTES: u64 = 20;
/// Maximum number of reports to wait for. bpftrace prints 20 reports a second.
const REPORTS: u32 = 100;

/// LTTng's daemon, and the script that traces the program.
struct Lttng {
    child: Child,
    _scratch: Scratch,
}

impl Lttng {
    fn new() -> Result<Lttng> {
        let scratch = Scratch::new()?;
        scratch.write(&SOURCES)?;
        let script = scratch.path().join("lttng.sh");
        let child = Child::start(Command::new("sh").arg(script).arg(scratch.path()))
            .context("no LTTng-UST")?;
        Ok(Lttng { child, _scratch: scratch })
    }
}

/// Measures an event of LTTng-UST. LTTng's daemon writes the event to a file.
pub fn lttng(context: &mut Context) -> Result<f64> {
    let lttng = context.resource(Lttng::new)?;
    let answer = lttng.child.ask(&LTTNG_EVENTS.to_string())?;
    let words: Vec<&str> = answer.split(' ').collect();
    let &[ns, discarded, bytes] = words.as_slice() else {
        bail!("the answer is {answer:?}");
    };
    ensure!(discarded == "0", "LTTng discarded {discarded} events");
    let bytes: u64 = bytes.parse()?;
    ensure!(bytes >= LTTNG_EVENTS * LTTNG_BYTES, "{bytes} bytes are not {LTTNG_EVENTS} events");
    Ok(ns.parse()?)
}

/// Child with an SDT probe, and the bpftrace process that is attached to it.
pub struct Bpftrace {
    target: Child,
    process: process::Child,
    output: BufReader<ChildStdout>,
}

impl Bpftrace {
    fn new() -> Result<Bpftrace> {
        let target = Child::of_this_program()?;
        let program = std::env::current_exe()?;
        let script = format!(
            "usdt:{}:hypertrace:bench_pair {{ @n = count(); }} \
             interval:ms:50 {{ print(@n); printf(\".\\n\"); }}",
            program.display()
        );
        let pid = target.id().to_string();
        let mut process = Command::new("bpftrace")
            .args(["-B", "line", "-p", &pid, "-e", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start bpftrace")?;
        let output = BufReader::new(process.stdout.take().context("a pipe is missing")?);
        let mut bpftrace = Bpftrace { target, process, output };
        // bpftrace reports too early that it is attached. Therefore the loop fires the probe until bpftrace
        // counts an event.
        for _ in 0..REPORTS {
            bpftrace.target.ns("sdt")?;
            if bpftrace.count()? > 0 {
                return Ok(bpftrace);
            }
        }
        bail!("bpftrace sees no probe of this program")
    }

    /// Returns the probe's count in bpftrace's next report.
    fn count(&mut self) -> Result<u64> {
        let (mut line, mut count) = (String::new(), 0);
        while self.output.read_line(&mut line)? > 0 {
            match line.trim().strip_prefix("@n: ") {
                Some(text) => count = text.parse()?,
                None if line == ".\n" => return Ok(count),
                None => {}
            }
            line.clear();
        }
        let mut why = String::new();
        if let Some(stderr) = &mut self.process.stderr {
            stderr.read_to_string(&mut why)?;
        }
        bail!("bpftrace ended: {}", why.trim())
    }

    fn ns(&mut self) -> Result<f64> {
        // bpftrace's reports that are in the pipe now may be old. Therefore the loop reads reports until the
        // count stays the same.
        let mut before = self.count()?;
        let mut now = self.count()?;
        while now != before {
            (before, now) = (now, self.count()?);
        }
        let ns = self.target.ns("sdt")?;
        for _ in 0..REPORTS {
            now = self.count()?;
            if now == before + TURNS {
                return Ok(ns);
            }
        }
        bail!("bpftrace saw {} of {TURNS} events", now - before)
    }
}

impl Drop for Bpftrace {
    fn drop(&mut self) {
        // bpftrace's reports are no longer needed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures an event that bpftrace counts.
pub fn bpftrace(context: &mut Context) -> Result<f64> {
    context.resource(Bpftrace::new)?.ns()
}

/// Number of calls that uftrace records.
const UFTRACE_CALLS: u64 = 200_000;

/// Measures a call of a function that is built with `-pg`. uftrace records the function's entry and its exit
/// to a file.
pub fn uftrace(_: &mut Context) -> Result<f64> {
    let scratch = Scratch::new()?;
    scratch.write(&[("uftrace.c", include_str!("uftrace/uftrace.c"))])?;
    // A program built with -pg writes a file to its working directory, so it runs in the scratch folder.
    let run = |program, args: &[&str]| scratch.run(Command::new(program).args(args));
    // The code first checks that uftrace runs, because all further steps need uftrace.
    run("uftrace", &["--version"]).context("no uftrace")?;
    run("cc", &["-O2", "-pg", "-o", "program", "uftrace.c"])?;
    let calls = UFTRACE_CALLS.to_string();
    let ns = run("uftrace", &["record", "--no-event", "-d", "data", "./program", &calls])?;
    let report = run("uftrace", &["report", "-d", "data", "-f", "call"])?;
    // An extra call sets up the thread's buffers.
    let all = format!("{} pair", UFTRACE_CALLS + 1);
    let is_whole = report.lines().any(|line| line.split_whitespace().eq(all.split(' ')));
    ensure!(is_whole, "uftrace has not recorded all {UFTRACE_CALLS} calls:\n{report}");
    ns.trim().parse().with_context(|| format!("the program said {ns:?}"))
}
