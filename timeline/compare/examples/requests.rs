// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Serves artificial requests, whose regions `hypertrace compare` can compare. Each request is a region
//! `request`, which contains the regions `parse`, `look_up` and `render`:
//!
//! ```console
//! $ hypertrace record --kernel -o S requests [REQUESTS [PARSE]]
//! ```
//!
//! `PARSE` is the work of `parse` in percent: 105 stands for a build whose `parse` does 5 % more work.

use std::env;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::thread;

use hypertrace::region;

/// Computes for about a nanosecond per step.
fn compute(steps: u64) -> u64 {
    (0..steps).fold(1, |sum, step| black_box(sum.rotate_left(5) ^ step))
}

fn main() -> io::Result<()> {
    let mut args = env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let (requests, parse) = (args.next().unwrap_or(1_000), args.next().unwrap_or(100));
    let file = File::open("/proc/self/exe")?;
    let (ask, questions) = channel();
    let (answer, answers) = channel();
    let worker =
        thread::spawn(move || questions.iter().try_for_each(|question| answer.send(question)));
    for id in 0..requests {
        let _request = region!("request", id);
        {
            let _region = region!("parse");
            compute(300 * parse);
        }
        {
            let _region = region!("look_up");
            let mut page = [0; 4096];
            file.read_exact_at(&mut page, 0)?;
            ask.send(page[0]).expect("a worker that lives");
            answers.recv().expect("an answer");
        }
        {
            let _region = region!("render");
            compute(20_000);
        }
    }
    drop(ask);
    // The worker ends when there is no further question.
    let _ = worker.join();
    Ok(())
}
