//! Processes: a forked child has clients of its own, an exec leaves none, and a dead process's clients are
//! free.
#![cfg(feature = "std")]
#![allow(unsafe_code)]

use crate::common;
use common::{Child, Host, TICK, alone, client, emit, fork, is_locked, shared_word, wait_until};
use hypertrace::abi::schema;
use hypertrace::counts;
use std::ffi::CString;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

#[test]
fn a_forked_child_has_a_client_of_its_own_and_its_parents_records_are_intact() {
    alone(|| {
        let (mut host, memory) = Host::install(4, 1, 1 << 20);
        emit(1000);
        assert_eq!(client(), Some(1));
        let pid = host.while_draining(|| {
            let child = fork(|| {
                emit(2000);
                thread::spawn(|| emit(3000)).join().unwrap();
                i32::from(client() != Some(2))
            });
            let pid = child.0 as u32;
            emit(100_000);
            hypertrace::poll();
            assert_eq!(child.wait(), 0);
            pid
        });
        let of = |pid| -> u64 {
            let tokens = host.seen.tokens_of(pid);
            tokens.iter().map(|&t| host.seen.count_of(t, TICK)).sum()
        };
        let (child, parent) = (of(pid), of(std::process::id()));
        assert_eq!(child, 5000);
        assert_eq!(host.seen.tokens_of(pid).len(), 2);
        assert_eq!(host.seen.tokens_of(std::process::id()).len(), 1);
        assert_eq!(parent + host.losses().total(), 101_000);
        assert_eq!((host.seen.backwards, host.faults()), (0, vec![]));
        // The child has ended, and so have its leases.
        assert!(is_locked(&memory, 1));
        assert!(!is_locked(&memory, 2) && !is_locked(&memory, 3));
        thread::spawn(|| assert_eq!(client(), Some(2))).join().unwrap();
    });
}

#[test]
fn a_child_that_never_emits_does_not_keep_its_dead_parents_client() {
    alone(|| {
        let (_, memory) = Host::install(2, 0, 1 << 16);
        let (grandchild, middle_has) = (shared_word(), shared_word());
        let middle = fork(|| {
            emit(1);
            middle_has.store(1 + u64::from(client().unwrap()), Relaxed);
            let idle = fork(|| {
                thread::sleep(Duration::from_secs(60));
                0
            });
            grandchild.store(idle.0 as u64, Relaxed);
            0
        });
        assert_eq!(middle.wait(), 0);
        let had = middle_has.load(Relaxed) as u32 - 1;
        assert_eq!(had, 0);
        // The grandchild may not have run yet.
        wait_until("free", || !is_locked(&memory, had));
        thread::spawn(move || assert_eq!(client(), Some(had))).join().unwrap();
        // SAFETY: the signal goes to a process that this test made, and cannot wait for.
        unsafe { libc::kill(grandchild.load(Relaxed) as i32, libc::SIGKILL) };
    });
}

/// Without fork handlers, the child finds its wiped pages at its first event, and separates from its parent
/// then.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_child_made_without_fork_handlers_parts_at_its_first_event() {
    alone(|| {
        let (mut host, memory) = Host::install(3, 0, 1 << 16);
        let (say, said) = (shared_word(), shared_word());
        let child = fork(|| {
            emit(10);
            common::raw_fork(|| {
                wait_until("told to emit", || say.load(Relaxed) == 1);
                emit(20);
                said.store(1 + u64::from(client().unwrap()), Relaxed);
                wait_until("told to end", || say.load(Relaxed) == 2);
                0
            });
            // This process ends before its own child, so the test cannot wait for the end of the grandchild.
            0
        });
        assert_eq!(child.wait(), 0);
        assert!(is_locked(&memory, 0), "inherited, with the description");
        say.store(1, Relaxed);
        wait_until("the grandchild's events", || said.load(Relaxed) > 0);
        // The grandchild has let go of its parent's lock, and its parent is dead, so client 0 is free.
        assert_eq!(said.load(Relaxed), 1);
        say.store(2, Relaxed);
        host.drain();
        let tokens: Vec<u64> = host.seen.leases.iter().map(|l| l.token).collect();
        let events: Vec<u64> = tokens.iter().map(|&t| host.seen.count_of(t, TICK)).collect();
        assert_eq!(events, [10, 20]);
        assert_eq!(host.faults(), []);
    });
}

#[test]
fn exec_gives_the_clients_back_though_the_process_lives() {
    alone(|| {
        let (mut host, memory) = Host::install(2, 0, 1 << 16);
        let child: Child = fork(|| {
            emit(5);
            assert_eq!(client(), Some(0));
            let (path, arg) = (CString::from(c"/bin/sleep"), CString::from(c"60"));
            let args = [path.as_ptr(), arg.as_ptr(), std::ptr::null()];
            // SAFETY: the arguments are a path and a list that ends with a null.
            unsafe { libc::execv(path.as_ptr(), args.as_ptr()) };
            1
        });
        let comm = format!("/proc/{}/comm", child.0);
        wait_until("exec", || std::fs::read_to_string(&comm).is_ok_and(|comm| comm == "sleep\n"));
        // An exec first changes the process's name, and then closes the descriptors.
        wait_until("free", || !is_locked(&memory, 0));
        assert_eq!(client(), Some(0));
        host.drain();
        assert_eq!((host.seen.count(TICK), host.seen.leases.len()), (5, 2));
        assert_eq!(host.faults(), []);
        child.kill();
    });
}

#[test]
fn an_exiting_process_reports_its_losses() {
    alone(|| {
        let (mut host, _) = Host::install(2, 0, 1 << 12);
        let child = fork(|| {
            emit(1000);
            // SAFETY: exit ends the process, as a return from main does.
            unsafe { libc::exit(0) }
        });
        assert_eq!(child.wait(), 0);
        let lost = host.losses().full;
        host.drain();
        assert!(lost > 0);
        assert_eq!(host.seen.count(TICK) + lost, 1000);
    });
}

#[test]
fn a_lock_file_that_takes_no_locks_is_refused() {
    alone(|| {
        let geometry = hypertrace::abi::layout::Geometry::default();
        let memory = common::memfd(geometry.rings_size());
        let host = Host::new(geometry, 0, common::map(&memory, geometry.rings_size()));
        let channel = hypertrace::Channel::local(&host.page, host.rings).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
        let read_only = File::open(path).unwrap();
        let why = hypertrace::install(channel, Some(read_only)).unwrap_err();
        assert!(why.to_string().contains("cannot lock bytes of the lock file"), "{why}");
        // The refused channel is not open, so another channel can be installed.
        hypertrace::install(channel, Some(memory)).unwrap();
    });
}

#[test]
fn many_processes_and_threads_never_share_a_client() {
    alone(|| {
        let (mut host, _) = Host::install(6, 0, 1 << 16);
        let unattached = shared_word();
        host.while_draining(|| {
            let children = [(); 4].map(|()| {
                fork(|| {
                    for _ in 0..20 {
                        let threads = [(); 2].map(|()| thread::spawn(|| emit(500)));
                        for thread in threads {
                            thread.join().unwrap();
                        }
                    }
                    unattached.fetch_add(counts().unattached, Relaxed);
                    0
                })
            });
            for child in children {
                assert_eq!(child.wait(), 0);
            }
        });
        // Two threads on one client would break sequence, order and sums.
        let lost = host.losses().total();
        let unattached = unattached.load(Relaxed);
        eprintln!("recorded {}, lost {lost}, unattached {unattached}", host.seen.count(TICK));
        assert_eq!(host.seen.count(TICK) + lost + unattached, 80_000);
        assert_eq!((host.seen.backwards, host.faults()), (0, vec![]));
    });
}

#[test]
fn a_child_of_a_channel_without_a_lock_file_has_no_client() {
    alone(|| {
        let (host, _): (Host, File) = {
            let geometry = hypertrace::abi::layout::Geometry { clients: 2, ..Default::default() };
            let memory = common::memfd(geometry.rings_size());
            let rings = common::map(&memory, geometry.rings_size());
            (Host::new(geometry, 0, rings), memory)
        };
        let channel = hypertrace::Channel::local(&host.page, host.rings).unwrap();
        hypertrace::install(channel, None).unwrap();
        emit(1);
        let child = fork(|| {
            emit(10);
            let why = hypertrace::open(&hypertrace::Options::default()).unwrap_err();
            assert!(why.to_string().contains("lock file"), "{why}");
            i32::from(counts().unattached != 10)
        });
        assert_eq!(child.wait(), 0);
        assert_eq!(counts().unattached, 0);
    });
}

#[test]
fn a_child_that_is_forked_while_threads_begin_and_end_has_its_own_refresher() {
    alone(|| {
        let (host, _memory) = Host::install(4, 0, 1 << 16);
        emit(1);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        thread::spawn(|| ()).join().unwrap();
                    }
                });
            }
            let slot = schema::mask_slot("tick");
            let child = |version: u64| {
                host.set_mask("tick", false, 2 * version);
                let child = fork(|| {
                    emit(1);
                    host.set_mask("tick", true, 2 * version + 1);
                    // This thread emits nothing, so the child's refresher copies the mask.
                    wait_until("the mask", || !hypertrace::is_on(slot));
                    0
                });
                child.wait()
            };
            let ends: Vec<_> = (1..500).map(child).collect();
            stop.store(true, Relaxed);
            assert!(ends.iter().all(|code| *code == 0), "{ends:?}");
        });
    });
}
