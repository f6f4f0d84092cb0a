//! Threads: each thread has a client and gives it back, and the events of a thread without a client are
//! counted.
#![cfg(feature = "std")]

use crate::common;
use common::{Host, TICK, alone, emit, wait_until};
use hypertrace::{ProcessCounts, counts};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

#[test]
fn a_thread_gives_its_client_back_and_the_next_one_has_a_token_of_its_own() {
    alone(|| {
        let (mut host, _) = Host::install(4, 2, 1 << 16);
        for round in 1..=5 {
            let thread = thread::Builder::new().name(format!("worker {round}"));
            thread.spawn(move || emit(round)).unwrap().join().unwrap();
        }
        host.drain();
        let clients: Vec<u32> = host.seen.leases.iter().map(|l| l.client).collect();
        assert_eq!(clients, [2; 5], "the first that is not a vCPU's, again and again");
        for (round, lease) in (1..).zip(&host.seen.leases) {
            assert_eq!(host.seen.count_of(lease.token, TICK), round);
            assert_eq!(lease.name, format!("worker {round}"));
            assert_eq!(lease.pid, std::process::id());
        }
        assert_eq!((host.faults(), host.losses().total()), (vec![], 0));
        assert_eq!(host.seen.total(), 15);
    });
}

#[test]
fn threads_without_a_client_are_counted_until_one_is_free() {
    alone(|| {
        let (mut host, _) = Host::install(5, 1, 1 << 16);
        let (all_emitted, end) = (Barrier::new(7), Barrier::new(7));
        let (say, heard) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..7 {
                let say = say.clone();
                let (all_emitted, end) = (&all_emitted, &end);
                scope.spawn(move || {
                    emit(100);
                    all_emitted.wait();
                    let mine = hypertrace::with_client(|client| client.index());
                    say.send(mine).unwrap();
                    end.wait();
                });
            }
        });
        let mut clients: Vec<u32> = heard.try_iter().flatten().collect();
        clients.sort_unstable();
        assert_eq!(clients, [1, 2, 3, 4]);
        host.drain();
        assert_eq!(host.seen.count(TICK), 400);
        assert_eq!(counts().unattached, 300, "with_client is no event");

        // The threads have ended, so a new thread gets a client.
        thread::spawn(|| emit(50)).join().unwrap();
        host.drain();
        assert_eq!(host.seen.count(TICK), 450);
        assert_eq!(host.faults(), []);
    });
}

#[test]
fn a_thread_that_got_no_client_asks_again_later() {
    alone(|| {
        let (mut host, _) = Host::install(1, 0, 1 << 16);
        let (end, ended) = mpsc::channel::<()>();
        let (started, start) = mpsc::channel();
        let first = thread::spawn(move || {
            emit(1);
            started.send(()).unwrap();
            ended.recv().unwrap();
        });
        start.recv().unwrap();
        emit(10);
        assert_eq!(counts().unattached, 10);
        end.send(()).unwrap();
        first.join().unwrap();
        thread::sleep(Duration::from_millis(30));
        emit(10);
        host.drain();
        assert_eq!(host.seen.count(TICK), 11);
        assert_eq!(counts().unattached, 10);
    });
}

#[test]
fn a_sleeping_threads_losses_are_reported() {
    alone(|| {
        let (mut host, _) = Host::install(1, 0, 1 << 12);
        let (end, ended) = mpsc::channel::<()>();
        let sleeper = thread::spawn(move || {
            emit(1000);
            ended.recv().unwrap();
        });
        wait_until("the sleeper's losses", || {
            let lost = host.losses().full;
            host.drain();
            lost > 0 && lost + host.seen.count(TICK) == 1000
        });
        end.send(()).unwrap();
        sleeper.join().unwrap();
        assert_eq!(host.losses().full + host.seen.count(TICK), 1000);
        assert_eq!(host.faults(), []);
    });
}

#[test]
fn losses_are_exact_while_threads_begin_and_end() {
    alone(|| {
        let (mut host, _) = Host::install(4, 0, 1 << 12);
        host.while_draining(|| {
            let workers = [(); 3].map(|()| {
                thread::spawn(|| {
                    for _ in 0..100 {
                        thread::spawn(|| emit(2000)).join().unwrap();
                    }
                })
            });
            for worker in workers {
                worker.join().unwrap();
            }
        });
        let lost = host.losses();
        assert!(lost.full > 0);
        assert_eq!(host.seen.count(TICK) + lost.total(), 600_000);
        // A holder may have left no record at all, if the ring was full as long as the holder had its lease.
        assert!((100..=300).contains(&host.seen.leases.len()));
        assert_eq!(host.faults(), []);
        assert_eq!(counts(), ProcessCounts::default());
    });
}

#[test]
fn the_mask_reaches_threads_that_do_nothing_for_it() {
    alone(|| {
        let (mut host, _) = Host::install(1, 0, 1 << 16);
        let slot = hypertrace::abi::schema::mask_slot("tick");
        emit(1);
        host.set_mask("tick", true, 1);
        wait_until("off", || !hypertrace::is_on(slot));
        emit(1000);
        host.set_mask("tick", false, 2);
        wait_until("on", || hypertrace::is_on(slot));
        emit(1);
        host.drain();
        assert_eq!((host.seen.count(TICK), host.losses().total()), (2, 0));
    });
}

#[test]
fn reference_points_and_2016_events_go_to_the_threads_client() {
    alone(|| {
        let (mut host, _) = Host::install(1, 0, 1 << 16);
        let reply = hypertrace::reference_point!("irq", line = 3u8).unwrap();
        assert!(reply.before <= reply.after);
        hypertrace::with_client(|client| hypertrace::hypertrace(client, 7, &[1])).unwrap();
        hypertrace::poll();
        host.drain();
        assert_eq!(host.seen.count("irq(line:u8)"), 1);
        assert_eq!(host.seen.total(), 2);
        assert_eq!((host.seen.backwards, host.faults()), (0, vec![]));
    });
}

#[test]
fn events_without_a_client_are_reported_by_the_next_thread_with_one() {
    alone(|| {
        const THREADS: u64 = 200;
        let (mut host, _) = Host::install(64, 0, 1 << 16);
        let all = Arc::new(Barrier::new(THREADS as usize));

        host.while_draining(|| {
            let threads = (0..THREADS).map(|_| {
                let all = Arc::clone(&all);
                thread::spawn(move || {
                    emit(100);
                    all.wait();
                    emit(100);
                })
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
            // If the last thread that ended had no client, this thread's client publishes the count.
            emit(1);
        });

        let lost = host.losses();
        assert!(lost.unattached >= (THREADS - 64) * 100, "{lost:?}");
        assert_eq!(lost.unattached, counts().unattached);
        assert_eq!(host.seen.count(TICK) + lost.total(), THREADS * 200 + 1);
        assert_eq!(host.faults(), []);
    });
}

#[test]
fn threads_that_come_and_go_fill_all_rings_before_an_event_is_lost() {
    alone(|| {
        const CLIENTS: u32 = 8;
        const EVENTS: u64 = 4;
        let (mut host, _) = Host::install(CLIENTS, 0, 1 << 16);
        let threads = |n: u64| {
            (0..n).for_each(|_| thread::spawn(|| emit(EVENTS)).join().unwrap());
        };

        // Each thread begins a block, and a ring keeps one of its 16 blocks for commits.
        threads(15 * u64::from(CLIENTS));

        assert_eq!(host.losses().total(), 0);
        threads(10);
        assert_eq!(host.losses().full, 10 * EVENTS);
        host.drain();
        assert_eq!(host.seen.count(TICK), 15 * u64::from(CLIENTS) * EVENTS);
        let first = &host.seen.leases[0];
        assert_eq!((first.client, host.faults()), (0, vec![]));
        assert_eq!(counts(), ProcessCounts::default());
    });
}
