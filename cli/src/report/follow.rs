//! `report --follow`: events of a session while it is written.
//!
//! Events are held back for [`DELAY`] after they were read, and then printed in order of time: the streams
//! of a session are drained one after the other.

use super::functions::Functions;
use super::{Args, Lines};
use crate::Usage;
use crate::interrupt::Interrupts;
use crate::losses::grouped;
use crate::output::say;
use crate::writer::{Writer, look};
use anyhow::Context;
use hypertrace_timeline::{EntryRef, Follow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for which an event waits for earlier ones of other streams.
const DELAY: Duration = Duration::from_millis(250);
/// Pause between two looks at a session without news.
const PERIOD: Duration = Duration::from_millis(100);
/// Number of entries that are held back at most.
const MOST_HELD: usize = 200_000;
/// Bytes of lines that are held back at most.
const MOST_HELD_BYTES: usize = 64 << 20;

/// An entry that waits.
struct Held {
    /// Time since the session's start, `None` if it is not known; then it has the place of the last one.
    since: Option<i64>,
    is_event: bool,
    /// The line, in text without its times.
    line: String,
}

/// Entries in order of time, and of reading where that is the same.
#[derive(Default)]
struct Queue {
    held: BTreeMap<(i64, u64), Held>,
    /// Bytes of their lines.
    bytes: usize,
    entries: u64,
    /// Latest time of an entry that was read.
    last: i64,
    /// Times of rounds, and the latest times of their entries.
    rounds: VecDeque<(Instant, i64)>,
    /// Latest time that was printed.
    printed: i64,
    late: u64,
    latest: i64,
}

impl Queue {
    fn push(&mut self, ts_ns: Option<i64>, held: Held) {
        let time = ts_ns.unwrap_or(self.last);
        self.last = self.last.max(time);
        if held.is_event && time < self.printed {
            self.late += 1;
            self.latest = self.latest.max(self.printed.saturating_sub(time));
        }
        self.entries += 1;
        self.bytes += held.line.len();
        self.held.insert((time, self.entries), held);
    }

    /// Takes an entry that need not wait any more: up to the time `until`, or of a queue that is full.
    fn pop(&mut self, until: i64) -> Option<Held> {
        let first = self.held.first_entry()?;
        let (time, _) = *first.key();
        if time > until && !self.is_full() {
            return None;
        }
        self.printed = self.printed.max(time);
        let (_, held) = self.held.pop_first()?;
        self.bytes -= held.line.len();
        Some(held)
    }

    /// Returns whether more is held back than may be.
    fn is_full(&self) -> bool {
        self.held.len() > MOST_HELD || self.bytes > MOST_HELD_BYTES
    }

    /// Ends a round. Returns the time up to which entries have waited long enough.
    fn settled(&mut self, now: Instant, more_after: Option<i64>) -> i64 {
        self.rounds.push_back((now, self.last));
        let mut until = i64::MIN;
        while let Some((at, last)) = self.rounds.front()
            && now.duration_since(*at) >= DELAY
        {
            until = until.max(*last);
            self.rounds.pop_front();
        }
        // Nothing of a stream that has more may be overtaken.
        more_after.map_or(until, |after| {
            until.max(after.saturating_sub(DELAY.as_nanos() as i64)).min(after)
        })
    }
}

/// Prints entries until the session ends.
pub fn run(args: &Args, dir: &Path) -> anyhow::Result<()> {
    if args.limit == Some(0) {
        return Ok(());
    }
    let _interrupts = Interrupts::catch();
    let mut follow = Follow::open(dir)?;
    let mut printer = Printer::new(args, follow.started_unix_ns())?;
    let mut queue = Queue { printed: i64::MIN, last: follow.started_unix_ns(), ..Queue::default() };
    let mut writer = Writer::new(dir);
    let mut said = None;
    let ended = loop {
        let mut spilled = Ok(false);
        let round = follow.round(&mut |entry| {
            // A round reads a part of each file, however many there are.
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
        let until = queue.settled(now, round.more_after);
        if printer.print(&mut queue, until)? || Interrupts::came().is_some() {
            break false;
        }
        if round.has_news || round.more_after.is_some() {
            writer.is_alive(now);
            said = None;
        } else if round.is_finished || said.is_some() {
            break true;
        } else if writer.is_silent(now) {
            match look(dir) {
                true => writer.is_alive(now),
                // One more round: it may have written until now.
                false => said = Some("not finished: its writer was ended"),
            }
            continue;
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
    if queue.late > 0 {
        let (late, ms) = (grouped(queue.late), queue.latest as f64 / 1e6);
        say(format_args!("{late} events came too late for their place, by up to {ms:.1} ms"));
    }
    Ok(())
}

/// Waits for a period. Returns whether there is a reader of the output.
fn wait() -> anyhow::Result<bool> {
    let out = io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let period = Timespec { tv_sec: 0, tv_nsec: PERIOD.as_nanos() as i64 };
    match poll(&mut fds, Some(&period)) {
        // A signal, which the loop looks for.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(why) => Err(io::Error::from(why)).context("cannot wait"),
        Ok(_) => Ok(!fds[0].revents().contains(PollFlags::ERR)),
    }
}

/// Lines of the entries that the arguments admit.
struct Printer<'a> {
    args: &'a Args,
    lines: Lines,
    names: Functions,
    start: i64,
    left: u64,
    out: io::BufWriter<io::Stdout>,
}

impl<'a> Printer<'a> {
    fn new(args: &'a Args, start: i64) -> anyhow::Result<Printer<'a>> {
        let lines = Lines::new(&[], &[]).diff(args.ts_diff);
        let names = Functions::read(&args.symbols)?;
        let (left, out) = (args.limit.unwrap_or(u64::MAX), io::BufWriter::new(io::stdout()));
        Ok(Printer { args, lines, names, start, left, out })
    }

    /// Puts an entry into the queue, if it is to be shown.
    fn hold(&mut self, queue: &mut Queue, entry: EntryRef<'_>) {
        let Printer { args, lines, names, start, .. } = self;
        match entry {
            EntryRef::Event(event) => {
                let since = event.ts_ns.saturating_sub(*start);
                let name = names.name(&event);
                if args.admits(&event, since) {
                    let line = match args.json {
                        true => lines.json(&event, since, name),
                        false => lines.untimed(&event, name),
                    };
                    let (since, line) = (Some(since), line.to_owned());
                    queue.push(Some(event.ts_ns), Held { since, is_event: true, line });
                }
            }
            EntryRef::Lost(lost) => {
                let since = lost.ts_ns.map(|at| at.saturating_sub(*start));
                if args.admits_lost(&lost, since) {
                    let line = match args.json {
                        true => lines.json_lost(&lost, since),
                        false => lines.untimed_lost(&lost),
                    };
                    let line = line.to_owned();
                    queue.push(lost.ts_ns, Held { since, is_event: false, line });
                }
            }
        }
    }

    /// Prints the entries up to a time, at once. Returns whether the arguments want no more.
    fn print(&mut self, queue: &mut Queue, until: i64) -> anyhow::Result<bool> {
        let is_done = self.spill(queue, until)?;
        self.out.flush().context("cannot write")?;
        Ok(is_done)
    }

    /// Prints the entries up to a time, and those for which there is no room. Returns whether the arguments want
    /// no more.
    fn spill(&mut self, queue: &mut Queue, until: i64) -> anyhow::Result<bool> {
        let mut is_done = self.left == 0;
        while !is_done && let Some(held) = queue.pop(until) {
            if held.is_event && self.args.to.is_some_and(|to| held.since > Some(to)) {
                // Those that are left are later.
                self.left = 0;
            } else {
                let line = match self.args.json {
                    true => &held.line,
                    false => self.lines.timed(held.since, &held.line),
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
/// If there are other inputs.
pub fn directory<'p>(paths: &[&'p Path]) -> Result<&'p Path, Usage> {
    match paths {
        [dir] if !dir.is_file() => Ok(dir),
        _ => Err(Usage("--follow is for one session".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(queue: &mut Queue, time: i64) {
        let held = Held { since: Some(time), is_event: true, line: time.to_string() };
        queue.push(Some(time), held);
    }

    fn lines(queue: &mut Queue, until: i64) -> Vec<String> {
        std::iter::from_fn(|| queue.pop(until)).map(|held| held.line).collect()
    }

    #[test]
    fn events_wait_for_earlier_ones_of_later_rounds() {
        let mut queue = Queue { printed: i64::MIN, ..Queue::default() };
        let begun = Instant::now();
        event(&mut queue, 10);
        let first = queue.settled(begun, None);
        assert!(lines(&mut queue, first).is_empty());
        event(&mut queue, 5);
        event(&mut queue, 20);

        let until = queue.settled(begun + DELAY, None);

        assert_eq!(lines(&mut queue, until), ["5", "10"]);
        assert_eq!(queue.late, 0);
    }

    #[test]
    fn an_event_that_comes_too_late_is_shown_and_counted() {
        let mut queue = Queue { printed: i64::MIN, ..Queue::default() };
        event(&mut queue, 10);
        assert_eq!(lines(&mut queue, 10), ["10"]);

        event(&mut queue, 3);

        assert_eq!(lines(&mut queue, 10), ["3"]);
        assert_eq!((queue.late, queue.latest), (1, 7));
    }

    #[test]
    fn an_event_can_be_late_by_more_than_all_of_time() {
        let mut queue = Queue { printed: i64::MIN, ..Queue::default() };
        event(&mut queue, i64::MAX);
        assert_eq!(lines(&mut queue, i64::MAX).len(), 1);

        event(&mut queue, i64::MIN);

        assert_eq!((queue.late, queue.latest), (1, i64::MAX));
    }

    #[test]
    fn a_stream_that_has_more_is_not_overtaken() {
        let mut queue = Queue { printed: i64::MIN, ..Queue::default() };
        let (begun, second) = (Instant::now(), 1_000_000_000);
        event(&mut queue, second);
        event(&mut queue, 3 * second);
        queue.settled(begun, Some(second));

        let until = queue.settled(begun + DELAY, Some(second));

        assert_eq!(until, second);
        assert_eq!(lines(&mut queue, until).len(), 1);
    }

    #[test]
    fn a_full_queue_gives_its_first() {
        let mut queue = Queue { printed: i64::MIN, ..Queue::default() };
        (0..MOST_HELD as i64 + 2).for_each(|time| event(&mut queue, time));

        assert_eq!(lines(&mut queue, i64::MIN), ["0", "1"]);
    }
}
