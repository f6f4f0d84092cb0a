//! Finds and uses a device, on a system made of plain files.
#![cfg(feature = "std")]
#![allow(unsafe_code)]

use crate::common;
use common::device::{
    FUNCTION, FakeHost, GEOMETRY, System, WINDOW, assert_says, is_mapped, page, refusal,
};
use common::{TICK, alone, client, emit, fork, wait_until};
use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::layout::{guest_page, host_page, register};
use hypertrace::abi::schema::{FieldType, name_hash};
use hypertrace::{ChannelLocation, Clock, MemoryType, Options};
use hypertrace::{counts, event, open, with_client};
use std::fs;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Opens a PCI function that has a host.
fn opened() -> (System, FakeHost) {
    let system = System::with_function(0x10f0, 0);
    let fake = system.host();
    open(&system.options).unwrap();
    (system, fake)
}

#[test]
fn the_pci_function_is_switched_on_and_mapped_write_combining_first() {
    alone(|| {
        let system = System::with_function(0x10f0, 0);
        let info = open(&system.options).unwrap();
        assert_eq!(
            (&info.place, info.clients.clone(), info.memory_type, info.clock),
            (
                &ChannelLocation::Function(system.file("")),
                2..6,
                MemoryType::WriteBack,
                Clock::Counter
            )
        );
        assert_eq!((info.frequency, info.traps), (0, true));
        assert_eq!(fs::read(system.file("enable")).unwrap()[0], b'1');
        assert_eq!(fs::read(system.file("config")).unwrap()[4..6], [2, 4]);
        for name in ["resource1_wc", "resource2", "resource4_wc"] {
            assert!(is_mapped(&system.file(name)), "{name}");
        }
        assert!(!is_mapped(&system.file("resource4")));
        emit(1);
        let lock = fs::File::open(system.file("resource2")).unwrap();
        assert!(common::is_locked(&lock, 2) && !common::is_locked(&lock, 3));
        // An open channel stays open, whatever the options ask for.
        assert_eq!(open(&Options::default()).unwrap(), info);
    });
}

#[test]
fn a_function_with_another_device_id_is_known_by_its_subsystem() {
    alone(|| {
        let system = System::with_function(0x10ff, 0x6874);
        fs::remove_file(system.file("resource4_wc")).unwrap();
        fs::write(system.file("enable"), "7\n").unwrap();
        let info = open(&system.options).unwrap();
        assert_eq!(info.place, ChannelLocation::Function(system.file("")));
        assert!(is_mapped(&system.file("resource4")));
        assert_eq!(fs::read(system.file("enable")).unwrap(), b"7\n");
    });
}

#[test]
fn events_and_points_reach_the_functions_memory() {
    alone(|| {
        let (_system, mut fake) = opened();
        emit(100);
        // No host answers, and the reply says so.
        let reply = hypertrace::reference_point!("irq", line = 3u8).unwrap();
        assert_eq!((reply.status, reply.host_time), (hypertrace::Status::Failed, 0));
        with_client(|client| hypertrace::hypertrace(client, 0xab, &[])).unwrap();

        fake.host.drain();
        let lease = fake.host.seen.leases[0].clone();
        assert_eq!((lease.client, fake.host.seen.count(TICK)), (2, 100));
        assert_eq!(fake.stored(2, register::LEASE), lease.token);
        let name_hash = u64::from(name_hash("irq"));
        assert_eq!(fake.stored(2, register::EMIT), name_hash << 32 | 1);
        assert_eq!(fake.registers[2].load(Relaxed), 0xab);
        let slot = &fake.host.memory(2).guest[guest_page::SLOT..];
        assert_eq!(slot[0].load(Relaxed) as u32, 1);
        assert!((slot[1].load(Relaxed) >> 32) < 4096, "a CPU's number");
        assert_eq!(slot[4].load(Relaxed), 3);
        // Waits long enough for the refresher to look twice.
        thread::sleep(Duration::from_millis(50));
        assert_eq!((counts().unanswered, counts().taken, counts().unattached), (1, 0, 0));
    });
}

#[test]
fn a_client_that_another_took_is_left_to_it() {
    alone(|| {
        let (_system, mut fake) = opened();
        emit(10);
        assert_eq!(client(), Some(2));
        fake.thief.store(0xbad, Relaxed);
        wait_until("taken", || counts().taken == 1);
        fake.thief.store(0, Relaxed);
        fake.host.drain();
        let head = fake.host.memory(2).guest[guest_page::HEAD].load(Relaxed);
        emit(20);
        assert_eq!(client(), Some(3));
        fake.host.drain();
        assert_eq!(fake.host.seen.count(TICK), 30);
        assert_eq!(fake.host.seen.leases.len(), 2);
        // After the loss of client 2, the thread has written nothing to the ring of client 2.
        assert_eq!(fake.host.memory(2).guest[guest_page::HEAD].load(Relaxed), head);

        assert_eq!(counts().unattached, 0);
    });
}

#[test]
fn events_after_a_reset_of_the_device_are_counted_and_the_count_reaches_the_host() {
    alone(|| {
        const LOST: u64 = 1000;
        let (_system, mut fake) = opened();
        emit(10);
        fake.host.drain();
        assert_eq!(fake.host.seen.count(TICK), 10);
        // Resets the device as loadvm does, while the program continues.
        fake.store(2, register::LEASE, 0);
        let shown = &fake.host.memory(2).host[host_page::LEASE];
        wait_until("nobody's", || shown.load(Relaxed) == 0);
        emit(LOST);
        wait_until("taken", || counts().taken == 1);

        emit(1);

        // On a slow machine, the thread may give up the client before its last event, and emit the rest on
        // another client.
        fake.host.drain();
        let seen = &fake.host.seen;
        let later = seen.leases[1..].iter().map(|lease| seen.count_of(lease.token, TICK));
        let lost = counts().unattached;
        assert!(lost + later.sum::<u64>() > LOST, "{lost}");
        let told =
            |client: u32| fake.host.memory(client).guest[guest_page::LOST_UNATTACHED].load(Relaxed);
        wait_until("told", || (2..6).any(|client| told(client) >= lost));
    });
}

#[test]
fn a_poll_takes_no_client_away_whose_lease_the_host_does_not_show_yet() {
    alone(|| {
        let (_system, fake) = opened();
        fake.thief.store(0xbad, Relaxed);
        let poll_twice = || {
            let begin = Instant::now();
            emit(1);
            hypertrace::poll();
            hypertrace::poll();
            // The library's own thread takes the client away at its second look, not before 10 ms.
            let taken = counts().taken;
            (begin.elapsed() < Duration::from_millis(9)).then_some(taken)
        };
        wait_until("two polls in time", || {
            let before = counts().taken;
            let taken = thread::spawn(poll_twice).join().unwrap();
            assert_eq!(taken.unwrap_or(before), before);
            taken.is_some()
        });
    });
}

#[test]
fn a_forked_child_maps_the_function_anew() {
    alone(|| {
        let (system, mut fake) = opened();
        let rings = system.file("resource4_wc");
        emit(10);
        let child = fork(|| {
            // The child does not inherit the mapping, and has private memory at the address of its parent's
            // client.
            assert!(!is_mapped(&rings));
            hypertrace::poll();
            emit(20);
            assert!(is_mapped(&rings));
            i32::from(client() != Some(3))
        });
        assert_eq!(child.wait(), 0);
        emit(30);
        fake.host.drain();
        let seen = &fake.host.seen;
        let of = |l: &common::Leased| (l.client, seen.count_of(l.token, TICK));
        let events: Vec<_> = seen.leases.iter().map(of).collect();
        assert_eq!(events, [(2, 40), (3, 20)]);
        assert_eq!(fake.host.faults(), []);
    });
}

/// A field that forks while it is written, as a signal handler could. The child
/// continues the emit.
#[derive(Clone, Copy)]
struct Forks<'a>(&'a AtomicI32);

impl hypertrace::Field for Forks<'_> {
    const TYPE: FieldType = FieldType::I32;
    fn words(self) -> usize {
        1
    }
    fn put(self, out: &[AtomicU64]) {
        // SAFETY: the child emits, which needs nothing of other threads.
        self.0.store(unsafe { libc::fork() }, Relaxed);
        out[0].store(0, Relaxed);
    }
}

#[test]
fn a_child_forked_amid_an_emit_does_no_harm() {
    alone(|| {
        let (_system, mut fake) = opened();
        emit(10);
        let forked = AtomicI32::new(0);
        event!("forks", child = Forks(&forked));
        if forked.load(Relaxed) == 0 {
            emit(5);
            // SAFETY: _exit ends the child.
            unsafe { libc::_exit(i32::from(client() != Some(3))) };
        }
        assert_eq!(common::Child(forked.load(Relaxed)).wait(), 0);
        emit(10);
        fake.host.drain();
        assert_eq!(fake.host.seen.count(TICK), 25);
        assert_eq!(fake.host.seen.count("forks(child:i32)"), 1);
        assert_eq!(fake.host.faults(), []);
    });
}

#[test]
fn a_window_is_found_on_the_kernel_command_line() {
    alone(|| {
        let system = System::with_window();
        let line = format!("hypertrace.mmio=0x1000 quiet hypertrace.mmio={WINDOW:#x}\n");
        fs::write(system.options.proc.join("cmdline"), line).unwrap();
        let mut fake = system.host_of_window();
        let info = open(&system.options).unwrap();
        assert_eq!(info.place, ChannelLocation::Window(WINDOW));
        assert_eq!(info.clients, 2..6);
        emit(100);
        let child = fork(|| {
            emit(50);
            i32::from(client() != Some(3))
        });
        assert_eq!(child.wait(), 0);
        fake.host.drain();
        assert_eq!(fake.host.seen.count(TICK), 150);
        assert_ne!(fake.stored(2, register::LEASE), 0);
        let memory = fs::File::open(&system.options.memory).unwrap();
        assert!(common::is_locked(&memory, WINDOW as u32 + 2));
        assert!(!common::is_locked(&memory, WINDOW as u32 + 3));
    });
}

#[test]
fn a_window_can_be_given_by_options() {
    alone(|| {
        let system = System::with_window();
        let options = system.options.clone().with(|options| {
            options.window = Some(WINDOW);
            options.clock = Some(Clock::MonotonicRaw);
        });
        let info = open(&options).unwrap();
        assert_eq!(
            (info.place, info.clock),
            (ChannelLocation::Window(WINDOW), Clock::MonotonicRaw)
        );
    });
}

#[test]
fn the_environment_names_the_clock() {
    alone(|| {
        let system = System::with_function(0x10f0, 0);
        // SAFETY: no other thread of this process runs.
        let set = |clock| unsafe { std::env::set_var("HYPERTRACE_CLOCK", clock) };
        set("fast");
        assert_says(&refusal(&system), &["HYPERTRACE_CLOCK=fast names no clock", "monotonic_raw"]);
        set("monotonic_raw");
        assert_eq!(open(&system.options).unwrap().clock, Clock::MonotonicRaw);
        emit(1);
    });
}

#[test]
fn a_guest_without_a_steady_tsc_stamps_with_the_monotonic_clock() {
    alone(|| {
        let system = System::with_function(0x10f0, 0);
        fs::write(system.options.proc.join("cpuinfo"), "flags\t\t: fpu tsc\n").unwrap();
        assert_eq!(open(&system.options).unwrap().clock, Clock::MonotonicRaw);
        emit(1);
    });
}

#[test]
fn open_errors_have_defect_path_and_hint() {
    alone(|| {
        let none = System::new();
        let at = none.root.path().to_str().unwrap();
        assert_says(
            &refusal(&none),
            &[
                "no hypertrace device",
                at,
                "1af4:10f0",
                "hypertrace.mmio=",
                "start the VM",
                "start it with: hypertrace record -o DIR PROG",
            ],
        );
        fs::write(none.options.proc.join("cmdline"), "hypertrace.mmio=here\n").unwrap();
        assert_says(&refusal(&none), &["hypertrace.mmio=here is not an address", "0x"]);
        fs::write(none.options.proc.join("cmdline"), "hypertrace.mmio=0x10000\n").unwrap();
        assert_says(&refusal(&none), &["cannot open", "/mem", "No such file"]);

        let told = System::with_function(0x10f0, 0);
        let absent =
            told.options.clone().with(|options| options.function = Some("0000:00:1f.0".into()));
        assert_says(
            &open(&absent).unwrap_err().to_string(),
            &["cannot read", "0000:00:1f.0/enable", "is it a hypertrace device"],
        );

        let blank = System::with_function(0x10f0, 0);
        fs::write(blank.file("resource0"), vec![0; 65536]).unwrap();
        assert_says(
            &refusal(&blank),
            &["cannot find the config page in", "resource0", "magic at 0x28 is 0x0"],
        );

        let dropped = System::with_function(0x10f0, 0);
        fs::write(dropped.file("resource0"), vec![0xff; 65536]).unwrap();
        assert_says(&refusal(&dropped), &["resource0", "the VMM has dropped the device"]);

        let short = System::with_function(0x10f0, 0);
        let len = GEOMETRY.rings_size() - 1;
        fs::File::options()
            .write(true)
            .open(short.file("resource4"))
            .unwrap()
            .set_len(len)
            .unwrap();
        assert_says(
            &refusal(&short),
            &["cannot map all of", "resource4_wc", "shorter than the config page says"],
        );

        let taken = System::with_function(0x10f0, 0);
        let mut all_vcpus = page();
        all_vcpus.vcpu_clients = 6;
        use hypertrace::abi::zerocopy::IntoBytes;
        fs::write(taken.file("resource0"), [all_vcpus.words().as_bytes(), &[0; 4096]].concat())
            .unwrap();
        assert_says(&refusal(&taken), &["all 6 clients", "belong to vCPUs", "more clients"]);

        let missing = System::with_function(0x10f0, 0);
        fs::remove_file(missing.file("resource2")).unwrap();
        assert_says(&refusal(&missing), &["cannot open", FUNCTION, "resource2", "BARs"]);

        // After all that, a device is still found, in the same process.
        let right = System::with_function(0x10f0, 0);
        assert!(open(&right.options).is_ok());
    });
}

#[test]
fn an_event_after_a_pause_asks_the_host_to_drain() {
    alone(|| {
        let (_system, mut fake) = opened();
        emit(1);
        fake.host.drain();
        // The pause is longer than 10 ms, whether or not the counter's rate is known.
        thread::sleep(Duration::from_millis(50));
        fake.mark();
        emit(1);
        assert!(fake.is_kicked());
    });
}

#[test]
fn the_library_kicks_for_records_that_the_host_has_left() {
    alone(|| {
        let (_system, fake) = opened();
        emit(1);
        for _ in 0..2 {
            fake.mark();
            wait_until("a KICK", || fake.is_kicked());
        }
    });
}
