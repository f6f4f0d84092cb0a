// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! SIGKILL at moments that are spread over a program's run. `HYPERTRACE_TEST_KILLS` is the number of kills.

use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::thread;
use std::time::Duration;

/// Maximum number of runs for each kill, on average. A run that ends by itself counts too.
const MAX_TRIES: u64 = 20;

/// Kills `usual` runs of a program, and checks what each killed run leaves. `HYPERTRACE_TEST_KILLS` overrides
/// `usual`.
///
/// `start` is called with the index of the kill, and returns when the run can be killed. The kill comes
/// within `span` after the return of `start`, at a different moment for each run. `kill` returns false if the
/// run ended before the kill. Then `start` begins another run.
#[track_caller]
pub fn sweep<R>(
    usual: u64,
    span: Duration,
    mut start: impl FnMut(u64) -> R,
    mut kill: impl FnMut(&mut R) -> bool,
    mut check: impl FnMut(R),
) {
    let kills = std::env::var("HYPERTRACE_TEST_KILLS");
    let kills = kills.map_or(usual, |kills| kills.parse().unwrap());
    let (mut killed, mut tries) = (0, 0);
    while killed < kills {
        assert!(tries < MAX_TRIES * kills, "{killed} of {tries} were killed before they ended");
        // Multiples of the golden ratio fill the span evenly, whatever the number of kills is.
        let moment = span.mul_f64((tries as f64 * 0.618_033_988_749_895).fract());
        tries += 1;
        let mut run = start(killed);
        thread::sleep(moment);
        if kill(&mut run) {
            println!("kill {killed}, after {moment:?}");
            check(run);
            killed += 1;
        }
    }
}

/// Kills a process. Returns false if the process ended before the kill.
pub fn kill(process: &mut Child) -> bool {
    process.kill().unwrap();
    process.wait().unwrap().signal() == Some(9)
}
