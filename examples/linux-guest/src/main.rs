//! Traces numbered events, commits and acknowledged points on four threads, and says how many could not be
//! recorded. Usage: `hypertrace-linux-guest EVENTS POINTS [FUNCTION]`. The numbers are for each thread.
//! FUNCTION selects the PCI function of a device other than the first.
//!
//! Linked statically, the program runs in an initramfs that has nothing else.

use std::process::ExitCode;
use std::thread;

use hypertrace::{Emit, Options, Status, commit, event, reference_point};

/// Number of words of an event's fields.
const WORDS: u64 = 4;
const THREADS: u64 = 4;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let function = (arguments.len() > 2).then(|| arguments.split_off(2).concat());
    let numbers: Option<Vec<u64>> = arguments.iter().map(|text| text.parse().ok()).collect();
    let Some(&[events, points]) = numbers.as_deref() else {
        eprintln!("usage: hypertrace-linux-guest EVENTS POINTS [FUNCTION]");
        return ExitCode::from(2);
    };
    match hypertrace::open(&Options::default().with(|options| options.function = function)) {
        Ok(info) => println!("found {:?}, clock {:?}", info.place, info.clock),
        Err(why) => {
            println!("not traced: {why}: {:?}", std::error::Error::source(&why));
            return ExitCode::FAILURE;
        }
    }
    let failed: u64 = thread::scope(|scope| {
        let worker = |number| {
            let builder = thread::Builder::new().name(format!("worker{number}"));
            builder.spawn_scoped(scope, move || trace(number, events, points))
        };
        let workers: Vec<_> = (0..THREADS).map(worker).collect();
        workers
            .into_iter()
            .map(|worker| worker.map_or(events, |w| w.join().unwrap_or(events)))
            .sum()
    });
    println!("failed: {failed}");
    ExitCode::from(u8::from(failed > 0))
}

/// Traces on one thread. Returns the number of events that could not be recorded.
fn trace(thread: u64, events: u64, points: u64) -> u64 {
    let every = (events / points.max(1)).max(1);
    let (mut failed, mut point) = (0, 0);
    for n in 0..events {
        let room = hypertrace::with_client(|client| client.wait_for_room(1, WORDS));
        failed += u64::from(room != Some(true));
        event!("step", thread, n, negative = -(n as i64), half = n as f64 / 2.0);
        if n % every == every - 1 && point < points {
            failed += u64::from(commit!("committed", thread, point) != Emit::Recorded);
            let reply = reference_point!("acknowledged", thread, point);
            failed += u64::from(!reply.is_ok_and(|reply| reply.status == Status::Recorded));
            point += 1;
        }
    }
    failed
}
