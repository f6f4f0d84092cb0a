//! Benchmarks of a program without a VM, whose iterations are regions:
//!
//! ```console
//! $ hypertrace record --kernel -o S cargo bench -p hypertrace-benchmark --bench native
//! $ hypertrace regions S
//! ```

use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use hypertrace::region;

/// Makes empty regions, so that `regions` shows the cost of a region itself next to the cost of the other
/// regions.
fn empty(_: &mut Criterion) {
    for _ in 0..1_000 {
        let _region = region!("empty");
    }
}

/// Measures a computation that waits for nothing.
fn checksum(criterion: &mut Criterion) {
    let data: Vec<u64> = (0..16_384).collect();
    let mut group = criterion.benchmark_group("checksum");
    for words in [128, data.len()] {
        let data = &data[..words];
        group.bench_with_input(BenchmarkId::from_parameter(words), data, |bencher, data| {
            bencher.iter(|| {
                let _region = region!("checksum", bytes = 8 * data.len());
                black_box(data).iter().fold(0, |sum: u64, word| sum.rotate_left(5) ^ word)
            });
        });
    }
}

/// Measures a question to another thread, and its answer.
fn round_trip(criterion: &mut Criterion) {
    let (ask, questions): (Sender<u64>, Receiver<u64>) = channel();
    let (answer, answers) = channel();
    let worker = thread::spawn(move || {
        for question in questions {
            if answer.send(question + 1).is_err() {
                break;
            }
        }
    });
    let mut question = 0;
    criterion.bench_function("round_trip", |bencher| {
        bencher.iter(|| {
            question += 1;
            let _region = region!("round_trip");
            ask.send(question).expect("a worker that lives");
            answers.recv().expect("an answer")
        });
    });
    drop(ask);
    worker.join().expect("a worker that ended");
}

criterion_group!(benches, empty, checksum, round_trip);
criterion_main!(benches);
