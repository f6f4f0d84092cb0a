//! `hypertrace-mark`: events and regions of shell scripts.

mod arguments;
mod command;
mod event;

use arguments::{Action, Arguments, Wanted};
use event::{Event, Value};
use hypertrace::{Emit, Info, Options, Status};
use std::error::Error;
use std::process::ExitCode;

/// Exit status if this program itself fails. env(1) and timeout(1) use the same status.
const FAILED: u8 = 125;

/// Error text if the host has ended and so may not have taken the event.
const HOST_ENDED: &str =
    "the host has ended: in a VM, start `hypertrace serve` anew, and then the VM";

const USAGE: &str = "\
usage: hypertrace-mark [OPTIONS] NAME [KEY=VALUE]..
           record an event
       hypertrace-mark [OPTIONS] --begin NAME [KEY=VALUE]..
           begin a region
       hypertrace-mark [OPTIONS] --end NAME [KEY=VALUE]..
           end a region, also one that another process began
       hypertrace-mark [OPTIONS] [NAME] [KEY=VALUE].. -- COMMAND [ARGUMENT]..
           run a command inside a region

Records events of a shell script: in a guest, or under `hypertrace record`.

      --ring     record in the ring, and never wait (the default)
      --sync     make reference points, which the host handles before the
                 program ends
      --require  fail if nothing can be recorded (the default is to go on)
      --help, --version

VALUE is an unsigned or a negative integer, a hexadecimal number (0x..), or else
a text. id=NUMBER distinguishes regions of one name, 0 if it is not given.

Exit status: 0, or that of COMMAND (128 and the number of the signal that ended
it, 126 if it cannot be run, 127 if it is not found); 125 if this program
failed.";

fn main() -> ExitCode {
    let arguments = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Wanted::Marks(arguments)) => arguments,
        Ok(Wanted::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Wanted::Version) => {
            println!("hypertrace-mark {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Err(why) => return failed(&format!("{why}; see hypertrace-mark --help")),
    };
    run(&arguments).unwrap_or_else(|why| failed(&why))
}

/// Does what the arguments say. Returns the exit status.
fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let opened = open();
    if let (Err(why), true) = (&opened, arguments.is_required) {
        return Err(format!("not recorded: {why}"));
    }
    let is_open = opened.is_ok();
    match &arguments.action {
        Action::Event(event) => {
            let recorded = if is_open { record(event, arguments) } else { Ok(()) };
            let is_lost = is_open && hypertrace::host_has_ended();
            let recorded = if is_lost { Err(HOST_ENDED.into()) } else { recorded };
            match recorded {
                Err(why) if arguments.is_required => Err(format!("not recorded: {why}")),
                _ => Ok(ExitCode::SUCCESS),
            }
        }
        // Without a channel, the command replaces this program.
        Action::Command { command, .. } if !is_open => Ok(command::replace(command)),
        Action::Command { begin, end, command } => {
            // If the begin cannot be recorded, the region is in no statistics. The command still runs,
            // because the command matters more.
            let _ = record(begin, arguments);
            let status = command::run(command);
            let _ = record(&end.with(Value::Signed(status.into())), arguments);
            Ok(ExitCode::from(status))
        }
    }
}

fn open() -> Result<Info, String> {
    hypertrace::open(&Options::default()).map_err(|why| match why.source() {
        Some(source) => format!("{why}: {source}"),
        None => why.to_string(),
    })
}

fn record(event: &Event, arguments: &Arguments) -> Result<(), String> {
    if !hypertrace::is_on(event.slot()) && !arguments.is_point {
        return Ok(());
    }
    let (names, values) = (event.names(), event.values());
    let recorded = hypertrace::with_client(|client| {
        if !arguments.is_point {
            return result(client.emit(names, values));
        }
        match client.reference_point(names, values) {
            Ok(reply) => match reply.status {
                Status::Recorded | Status::Filtered => Ok(()),
                status => Err(format!("the host says: {status:?}")),
            },
            Err(why) => result(why),
        }
    });
    recorded.unwrap_or_else(|| Err("no client is free".into()))
}

/// Returns the outcome of an emit as a result.
fn result(emitted: Emit) -> Result<(), String> {
    match emitted {
        Emit::Recorded => Ok(()),
        Emit::Full => Err("the ring is full".into()),
        Emit::Busy | Emit::Unleased => Err("no host answers".into()),
    }
}

/// Prints why this program failed. Returns the program's exit status.
fn failed(why: &str) -> ExitCode {
    eprintln!("hypertrace-mark: {why}");
    ExitCode::from(FAILED)
}
