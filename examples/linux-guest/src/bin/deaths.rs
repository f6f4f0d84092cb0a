//! Programs and hosts that die. `deaths kills BATCHES CHILDREN` kills this many batches of processes, each
//! process in the middle of an event or a reference point. `deaths points` makes points until the host no
//! longer answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::schema::FieldType;
use hypertrace::{Field, Options, Status, event, reference_point};
use rustix::process::{Signal, getpid, kill_process};

/// Number of points without an answer after which `points` ends.
const UNANSWERED: u64 = 5;
/// Maximum number of points that `points` makes.
const MAX_POINTS: u64 = 3000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Err(why) = hypertrace::open(&Options::default()) {
        println!("not traced: {why}: {:?}", std::error::Error::source(&why));
        return ExitCode::FAILURE;
    }
    let number = |text: &str| text.parse().unwrap_or(0);
    match arguments[..] {
        ["kills", batches, children] => kills(number(batches), number(children)),
        ["child", n] => child(number(n)),
        ["points"] => points(),
        _ => ExitCode::from(2),
    }
}

/// Kills batches of processes. All processes of a batch hold their clients at the same time.
fn kills(batches: u64, children: u64) -> ExitCode {
    let mut killed = 0u64;
    for batch in 0..batches {
        let start = |n: u64| {
            let mut command = Command::new("/proc/self/exe");
            command.arg("child").arg((batch * children + n).to_string());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        };
        let mut started: Vec<Child> = (0..children).filter_map(|n| start(n).ok()).collect();
        for child in &mut started {
            let mut line = String::new();
            let _ = child.stdout.as_mut().map(|out| BufReader::new(out).read_line(&mut line));
        }
        // All children have a client now. The end of its input tells each child to die.
        started.iter_mut().for_each(|child| drop(child.stdin.take()));
        for mut child in started {
            let is_killed =
                child.wait().is_ok_and(|ended| ended.signal() == Some(Signal::KILL.as_raw()));
            killed += u64::from(is_killed);
        }
        event!("witness", batch);
        let _ = reference_point!("witnessed", batch);
    }
    println!("killed: {killed}");
    ExitCode::SUCCESS
}

/// Makes an event and a point, and dies in the middle of a further event or point.
fn child(n: u64) -> ExitCode {
    let client = hypertrace::with_client(|client| client.index());
    event!("leased", n, client = client.unwrap_or(u32::MAX));
    let whole = reference_point!("whole", n);
    if whole.is_ok_and(|reply| reply.status == Status::Recorded) {
        println!("ready");
        let _ = std::io::stdout().flush();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        match n % 2 {
            0 => drop(reference_point!("cut_point", n, last = Kills)),
            _ => event!("cut_event", n, last = Kills),
        }
    }
    ExitCode::FAILURE
}

/// Makes points until [`UNANSWERED`] points are without an answer.
fn points() -> ExitCode {
    let mut answered = 0;
    for n in 0..MAX_POINTS {
        let reply = reference_point!("beat", n);
        answered += u64::from(reply.is_ok_and(|reply| reply.status == Status::Recorded));
        event!("between", n);
        if hypertrace::counts().unanswered >= UNANSWERED {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("answered: {answered}, {:?}", hypertrace::counts());
    ExitCode::SUCCESS
}

/// A field whose value is never written. The process is killed after it has written the fields before this
/// field, and before it publishes the event or stores to the register of the reference point.
#[derive(Clone, Copy)]
struct Kills;

impl Field for Kills {
    const TYPE: FieldType = FieldType::U64;

    fn words(self) -> usize {
        1
    }

    fn put(self, _: &[AtomicU64]) {
        let _ = kill_process(getpid(), Signal::KILL);
    }
}
