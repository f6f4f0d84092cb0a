//! `report --follow`: shows the events of a session while the session is written.
//!
//! Entries that were read wait in an [`Order`], and are then printed in order of time.

use super::{Args, Lines};
use crate::Usage;
use crate::interrupt::Interrupts;
use crate::output::{grouped, say};
use anyhow::Context;
use hypertrace_export::Choice;
use hypertrace_export::json::JsonLines;
use hypertrace_timeline::{EntryRef, Follow, FunctionNames, Module, Order, Recording};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two looks at a session that has no news.
const PERIOD: Duration = Duration::from_millis(100);
/// Time without news after which the command checks whether the session still has a writer.
const SILENCE: Duration = Duration::from_secs(3);

/// An entry that waits to be printed.
struct Held {
    /// Unix time in nanoseconds, `None` if it is not known.
    ts_ns: Option<i64>,
    is_event: bool,
    /// The entry as JSON, or as text without the columns of times.
    line: String,
}

/// Prints entries until the session ends.
pub fn run(args: &Args, dir: &Path) -> anyhow::Result<()> {
    if args.limit == Some(0) {
        return Ok(());
    }
    let _interrupts = Interrupts::catch_end();
    let mut follow = Follow::open(dir)?;
    let mut printer = Printer::new(args, follow.started_unix_ns())?;
    let mut queue = Order::new(follow.started_unix_ns());
    let mut last_sign = Instant::now();
    let mut said = None;
    let ended = loop {
        let mut spilled = Ok(false);
        let round = follow.round(&mut |entry| {
            // A round reads a part of each file, however many files there are.
            if matches!(spilled, Ok(false)) {
                printer.hold(&mut queue, entry);
                spilled = printer.spill(&mut queue, i64::MIN);
            }
        });
        spilled?;
        let round = match round {
            Ok(round) => round,
            Err(why) => {
                // The events before the damage are shown.
                printer.print(&mut queue, i64::MAX)?;
                return Err(why.into());
            }
        };
        let now = Instant::now();
        let until = queue.settle(now, round.more_after);
        if printer.print(&mut queue, until)? || Interrupts::came().is_some() {
            break false;
        }
        if round.has_news || round.more_after.is_some() {
            last_sign = now;
            said = None;
        } else if round.is_finished || said.is_some() {
            break true;
        } else if now.duration_since(last_sign) >= SILENCE {
            last_sign = now;
            if !follow.has_writer() {
                // One more round is read, because the writer may have written until now.
                said = Some("not finished: its writer was ended");
                continue;
            }
        }
        if round.more_after.is_none() && !wait()? {
            return Ok(());
        }
    };
    if ended {
        follow.end(&mut |entry| printer.hold(&mut queue, entry))?;
    }
    printer.print(&mut queue, i64::MAX)?;
    if let Some(said) = said {
        say(format_args!("{}: {said}", dir.display()));
    }
    let late = queue.late();
    if late.events > 0 {
        let (late, ms) = (grouped(late.events), late.most_ns as f64 / 1e6);
        say(format_args!(
            "{late} events are shown out of order, because they came up to {ms:.1} ms too late"
        ));
    }
    Ok(())
}

/// Waits for a period. Returns whether the output still has a reader.
fn wait() -> anyhow::Result<bool> {
    let out = io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let period = Timespec { tv_sec: 0, tv_nsec: PERIOD.as_nanos() as i64 };
    match poll(&mut fds, Some(&period)) {
        // If a signal interrupted the wait, the loop looks for the signal.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(why) => Err(io::Error::from(why)).context("cannot wait"),
        Ok(_) => Ok(!fds[0].revents().contains(PollFlags::ERR)),
    }
}

/// Lines of the entries that the arguments admit.
struct Printer<'a> {
    args: &'a Args,
    choice: Choice,
    lines: Lines,
    json: JsonLines,
    names: FunctionNames,
    left: u64,
    out: io::BufWriter<io::Stdout>,
}

impl<'a> Printer<'a> {
    fn new(args: &'a Args, start: i64) -> anyhow::Result<Printer<'a>> {
        let lines = Lines::new(&Recording::default()).since(start);
        let lines = lines.in_zone(args.time.zone());
        let choice = Choice { has_leases: args.json, ..args.wanted.choice(start, args.until)? };
        let modules = args.symbols.iter().map(Module::read).collect::<Result<Vec<_>, _>>()?;
        let (json, names) = (JsonLines::new(start), FunctionNames::new(modules));
        let (left, out) = (args.limit.unwrap_or(u64::MAX), io::BufWriter::new(io::stdout()));
        Ok(Printer { args, choice, lines, json, names, left, out })
    }

    /// Puts an entry into the queue if the arguments admit the entry.
    fn hold(&mut self, queue: &mut Order<Held>, entry: EntryRef<'_>) {
        let Printer { args, choice, lines, json, names, .. } = self;
        let entry = names.named(entry);
        if !choice.admits(&entry) {
            return;
        }
        let line = if args.json { json.line(&entry) } else { lines.untimed(&entry) }.to_owned();
        let (ts_ns, bytes) = (entry.ts_ns(), line.len());
        match &entry {
            EntryRef::Event(event) => {
                queue.event(event.ts_ns, bytes, Held { ts_ns, is_event: true, line });
            }
            EntryRef::Lost(_) => queue.lost(ts_ns, bytes, Held { ts_ns, is_event: false, line }),
        }
    }

    /// Prints the entries up to a time, and flushes the output. Returns whether the arguments want no more
    /// entries.
    fn print(&mut self, queue: &mut Order<Held>, until: i64) -> anyhow::Result<bool> {
        let is_done = self.spill(queue, until)?;
        self.out.flush().context("cannot write")?;
        Ok(is_done)
    }

    /// Prints the entries up to a time, and the entries for which the queue has no room. Returns whether the
    /// arguments want no more entries.
    fn spill(&mut self, queue: &mut Order<Held>, until: i64) -> anyhow::Result<bool> {
        let mut is_done = self.left == 0;
        while !is_done && let Some(held) = queue.pop(until) {
            if held.is_event && held.ts_ns.is_some_and(|ts_ns| self.choice.is_past(ts_ns)) {
                // All entries that are left in the queue have later times. The output therefore ends here.
                self.left = 0;
            } else {
                let line = match self.args.json {
                    true => &held.line,
                    false => self.lines.timed(held.ts_ns, &held.line),
                };
                self.out.write_all(line.as_bytes()).context("cannot write")?;
                self.left -= u64::from(held.is_event);
            }
            is_done = self.left == 0;
        }
        Ok(is_done)
    }
}

/// Returns the directory to follow.
///
/// # Errors
/// If `paths` is something other than one session.
pub fn directory<'p>(paths: &[&'p Path]) -> Result<&'p Path, Usage> {
    match paths {
        [dir] if !dir.is_file() => Ok(dir),
        _ => Err(Usage("--follow is for one session".into())),
    }
}
