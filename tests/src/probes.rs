//! bpftrace, which counts the hits of this process's probes.
#![allow(unsafe_code)] // kill(2)

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hypertrace_trace::event::{EVENTS, TraceEvent};

use crate::capability;

/// Mounts for [`inside`](crate::namespace::inside), because bpftrace looks for tracefs at its usual place.
pub const TRACEFS: &str = "[ -e /sys/kernel/tracing/trace ] || \
    mount -t tracefs none /sys/kernel/tracing 2> /dev/null || true";

const ATTACHED: &str = "attached";
/// Maximum time in which bpftrace attaches to the probes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bpftrace that counts.
#[derive(Debug)]
pub struct Counter {
    bpftrace: Child,
    out: BufReader<ChildStdout>,
}

impl Counter {
    /// Counts the hits of the probes of all events except `first`. Calls `call` again and again until
    /// bpftrace has seen a hit of the probe of `first`. Returns `None`, with a report, if bpftrace fails.
    pub fn start(first: &'static str, call: impl Fn() + Sync) -> Option<Counter> {
        let program = capability::program("bpftrace")?;
        let exe = std::env::current_exe().unwrap();
        let provider = format!("usdt:{}:hypertrace", exe.display());
        let others = EVENTS.iter().map(TraceEvent::name).filter(|name| *name != first);
        let probes: Vec<String> = others.map(|name| format!("{provider}:{name}")).collect();
        // bpftrace attaches the probes in this order.
        let script = format!(
            "{} {{ @events = count(); }} {provider}:{first} {{ printf(\"{ATTACHED}\\n\"); }}",
            probes.join(",")
        );
        let mut bpftrace = Command::new(program)
            .args(["-B", "line", "-p", &std::process::id().to_string(), "-e", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(bpftrace.stdout.take().unwrap());
        let attached = thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let lines = out.by_ref().lines().map_while(Result::ok);
                lines.into_iter().any(|line| line == ATTACHED)
            });
            let begun = Instant::now();
            while !looking.is_finished() {
                call();
                thread::sleep(Duration::from_millis(10));
                if begun.elapsed() > PATIENCE {
                    // The loop ends when bpftrace ends.
                    let _ = bpftrace.kill();
                }
            }
            looking.join().unwrap()
        });
        if attached {
            return Some(Counter { bpftrace, out });
        }
        let mut said = String::new();
        let mut stderr = bpftrace.stderr.take().unwrap();
        let _ = stderr.read_to_string(&mut said);
        let _ = bpftrace.wait();
        let why = said.lines().find(|line| !line.starts_with("WARNING")).unwrap_or_default();
        capability::missing("bpftrace", format!("cannot be run (root?): {why}"));
        None
    }

    /// Returns the number of hits.
    pub fn events(mut self) -> u64 {
        let pid = libc::pid_t::try_from(self.bpftrace.id()).unwrap();
        // SAFETY: the signal is to a child of this process that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
        let mut told = String::new();
        self.out.read_to_string(&mut told).unwrap();
        assert!(self.bpftrace.wait().unwrap().success());
        let count = told.lines().find_map(|line| line.strip_prefix("@events: ")).unwrap_or("0");
        capability::used("bpftrace");
        count.parse().unwrap()
    }
}
