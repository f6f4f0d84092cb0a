//! `hypertrace forward`: sends the events of a guest's kernel to the host.

use crate::Usage;
use crate::interrupt::Interrupts;
use crate::kernel::{runs_without, say_without};
use crate::output::{grouped, say};
use crate::record;
use crate::units;
use anyhow::{Context, Result, bail};
use hypertrace::abi::event_type;
use hypertrace::{ChannelLocation, Clock, ClockKind, Emit, Options, event, reference_point};
use hypertrace_kernel::{Forwarding, Piece};
use hypertrace_user::{Program, exit_code, pass_signals_on, run_command};
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Maximum time between two passes over the kernel's buffers, and between two readings of the clock.
const PERIOD: Duration = Duration::from_millis(200);

/// Environment variable that sets the clock of programs.
const CLOCK: &str = "HYPERTRACE_CLOCK";

/// In a guest: send its kernel's events to the host
///
/// The events join the VM's session on the host, where `hypertrace report` shows
/// them with the host's events. `forward` records all threads, until PROGRAM ends
/// or, without PROGRAM, until Ctrl-C. `forward` needs root, and the guest's channel
/// to its host.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub struct Args {
    /// Record these events of the kernel, with * and ?, instead of the default ones. May be given several
    /// times (default: the events of `hypertrace record -a`, which show which thread each CPU runs, and what
    /// woke the thread, even if an interrupt or a timer woke it. The scheduler's events alone cost less, -e
    /// sched:sched_switch -e 'sched:sched_wakeup*', but do not show what woke a thread)
    #[arg(long, short, value_name = "SYSTEM:EVENT", value_parser = record::event)]
    event: Vec<String>,

    /// Size of each CPU's buffer in the kernel's trace, such as 64K (default: 8M; less on machines
    /// with more than 64 CPUs)
    #[arg(long, value_name = "SIZE", value_parser = units::buffer_kib)]
    buffer: Option<u32>,

    /// Print no lines at the start and at the end
    #[arg(long, short)]
    quiet: bool,

    /// Record while this program runs, with its arguments; options end here
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace forward                     record until Ctrl-C
  hypertrace forward ./program           record while the program runs

Exit code: the program's, as `hypertrace record` gives it, or 0; 1 if the host
has no complete recording, 2 for wrong usage. If there is no host or no kernel's
trace, PROGRAM runs without a recording, unless --event or --buffer is given.";

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let program = args.program.first().map(|name| Program::find(name)).transpose()?;
    // Both guards live until the recording has ended, because a signal must not leave the recording
    // unfinished.
    let signals = program.is_some().then(pass_signals_on);
    let interrupts = program.is_none().then(Interrupts::catch_end);
    let opened =
        match hypertrace::open(&Options::default()).context("there is no host to record for") {
            Ok(opened) => opened,
            Err(why) => {
                let Some(program) = &program else { return Err(why) };
                return run_without(&why, program, args);
            }
        };
    if let ChannelLocation::Segment(segment) = opened.place {
        let why = "belongs to a program, which has no kernel of its own; `hypertrace record --kernel` \
                   records the host's kernel";
        return Err(Usage(format!("the segment {} {why}", segment.display())).into());
    }
    // The kernel's events use the same clock as the events of this guest's programs.
    let (clock, name) = match opened.clock {
        Clock::MonotonicRaw => (ClockKind::MonotonicRaw, "monotonic_raw"),
        _ => (ClockKind::Tsc, "tsc"),
    };
    crate::kernel::clean();
    let mut channel = Channel::default();
    channel.read_clock();
    let mut send = |piece: &Piece<'_>| channel.send(piece);
    let started = Forwarding::start(&args.event, args.buffer, clock, &mut send);
    let mut forwarding = match (started, &program) {
        (Ok(forwarding), _) => forwarding,
        (Err(why), Some(program)) if runs_without(&why, &args.event, args.buffer) => {
            return run_without(&why.into(), program, args);
        }
        (Err(why), _) => return Err(why).context("cannot record the kernel's events"),
    };
    if !args.quiet {
        say(format_args!(
            "recording the kernel's events ({}) of all threads for the host",
            crate::kernel::systems(forwarding.events())
        ));
    }
    let ran = match &program {
        Some(program) => {
            let mut command = command(program, args);
            command.env(CLOCK, name);
            // This thread, which holds the channel, continues the recording.
            let runner = thread::spawn({
                let program = Program::find(&args.program[0])?;
                move || run_command(&program, command)
            });
            let (ended, passed) = beside(runner, || pass(&mut forwarding, &mut channel))?;
            let ended = exit_code(ended?);
            match passed {
                Err(why) if ended != 0 => say(format_args!("{why:#}")),
                passed => passed?,
            }
            ended
        }
        None => {
            while Interrupts::came().is_none() {
                pass(&mut forwarding, &mut channel)?;
            }
            0
        }
    };
    let buffer_kib = forwarding.buffer_kib();
    let counts = forwarding.finish(&mut |piece| channel.send(piece));
    channel.read_clock();
    drop((signals, interrupts));
    let counts = counts.context("the host has no complete recording of this kernel")?;
    if !args.quiet || counts.overwritten > 0 || counts.unsent > 0 {
        say(format_args!(
            "{} bytes of the kernel's events went to the host; {} events were overwritten before that (raise \
             --buffer, {} now), {} pages found no room on the way",
            grouped(counts.bytes),
            grouped(counts.overwritten),
            units::shown(u64::from(buffer_kib) << 10),
            grouped(counts.unsent)
        ));
    }
    Ok(ExitCode::from(ran))
}

fn command(program: &Program, args: &Args) -> Command {
    let mut command = program.command();
    command.args(&args.program[1..]);
    command
}

/// Runs the program without a recording and says why, so that a script can run the same command on every
/// machine.
fn run_without(why: &anyhow::Error, program: &Program, args: &Args) -> Result<ExitCode> {
    say_without(why);
    let ended = run_command(program, command(program, args))?;
    Ok(ExitCode::from(exit_code(ended)))
}

/// Makes passes until the program has ended or a pass fails, and waits for the program's end. Returns the
/// program's result and the result of the passes.
fn beside<T>(
    program: JoinHandle<T>,
    mut pass: impl FnMut() -> Result<()>,
) -> Result<(T, Result<()>)> {
    let mut passed = Ok(());
    while passed.is_ok() && !program.is_finished() {
        passed = pass();
    }
    match program.join() {
        Ok(ended) => Ok((ended, passed)),
        Err(_) => bail!("the thread that runs the program panicked"),
    }
}

fn pass(forwarding: &mut Forwarding, channel: &mut Channel) -> Result<()> {
    channel.read_clock();
    channel.is_stuck = false;
    let passed = forwarding.pass(PERIOD, &mut |piece| channel.send(piece));
    passed.context("cannot read the kernel's events")
}

/// The way to the host.
#[derive(Debug, Default)]
struct Channel {
    words: Vec<u64>,
    /// Whether the host has taken nothing for a second. While the host is stuck, no piece waits for the host
    /// until the next pass.
    is_stuck: bool,
}

impl Channel {
    /// Sends a piece, and waits for room unless the host is stuck. Returns false if there was no room.
    fn send(&mut self, piece: &Piece<'_>) -> bool {
        let Channel { words, is_stuck } = self;
        words.clear();
        words.extend(piece.bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        let (recording, file, at) = (piece.recording, piece.file, piece.at);
        let (len, data) = (piece.bytes.len() as u32, &words[..]);
        // 16 more words are for the file's name and the other fields.
        let room = data.len() as u64 + 16;
        let sent = hypertrace::with_client(|client| {
            if !*is_stuck && !client.wait_for_room(1, room) {
                *is_stuck = true;
            }
            let (site, fields) = event_type!("guest_kernel", recording, file, at, len, data);
            client.emit(site, fields)
        });
        sent == Some(Emit::Recorded)
    }

    /// Makes reference points, which relate the guest's clock to the host's.
    fn read_clock(&mut self) {
        // The host may answer the first point only when the host next looks at the ring. From then on, the
        // host looks at the ring more often. The host therefore answers the second point sooner, and this
        // point relates the clocks more closely. If the host answers neither point, only earlier and later
        // points relate the clocks.
        for _ in 0..2 {
            let _ = reference_point!("guest_kernel_clock");
        }
        // The library reads the clock for this event after the last reply, so the event's time is not before
        // the host's time in this reply.
        event!("guest_kernel_clock");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_recording_that_fails_does_not_end_the_program() {
        let (fail, failed) = mpsc::channel();
        let program = thread::spawn(move || failed.recv().map(|()| 7));

        let (ended, passed) = beside(program, || {
            fail.send(())?;
            bail!("no room")
        })
        .unwrap();

        assert_eq!(ended, Ok(7));
        assert_eq!(passed.unwrap_err().to_string(), "no room");
    }
}
