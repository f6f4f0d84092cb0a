//! Triggers: the guest marks a region, and the host traces only inside the region.

use crate::alone;
use hypertrace_test_support::steps::Steps;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use hypertrace::{ProducerState, event};
use hypertrace_abi::layout::{PAGE, Region, register};
use hypertrace_abi::schema::{id_of, name_hash};
use hypertrace_abi::sink::{EventSink, ReferencePoint, Status};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::tracefs::Instance;
use hypertrace_tests::{capability, kvm, trace, wait_until};
use hypertrace_trace::control::set_declared;
use hypertrace_trace::trigger::{MAX_CHANGES, MAX_RULES};
use hypertrace_trace::{Session, enabled};
use kvm_vmm::{Answer, attach_window, record_in};

fn off(pattern: &str) {
    set_declared(&pattern.parse().unwrap(), false);
}

/// Makes a reference point as the device does.
fn point(session: &Session, name: &str, words: &[u64]) -> Status {
    session.reference_point(&ReferencePoint {
        client: 0,
        seq: 7,
        id: id_of(&format!("{name}()")),
        name_hash: name_hash(name),
        cpu: 0,
        guest_time: 0,
        host_time: hypertrace_abi::clock::ticks(),
        words,
    })
}

#[test]
fn vmm_and_kernel_events_are_on_only_inside_the_guests_region() {
    let _alone = alone();
    const ROUNDS: u64 = 100;
    let Some(mut machine) = kvm::machine(1) else { return };
    let Some(tracefs) = Instance::recording("kvm/kvm_mmio") else { return };
    let dir = tracefs.dir().display();
    fs::write(tracefs.dir().join("tracing_on"), "0").unwrap();
    let host = Host::new(geometry(1));
    off("vcpu_*");
    let rule = |text: String| host.session.add_trigger(&text).unwrap();
    rule(format!("on begin:measured do events vcpu_* on, kernel {dir} on"));
    rule(format!("on end:measured do kernel {dir} off, events vcpu_* off"));
    let drain = host.drain();
    machine.observe(record_in(host.session.clone()));
    attach_window(&mut machine, &host.device, layout::DEVICE, Answer::Device).unwrap();
    let args = Args { reference_points: ROUNDS, ..Args::new(Program::Regions) };

    kvm::run(machine, &Args { device: layout::DEVICE, ..args });

    drain.finish();
    assert!(!tracefs.is_on());
    let kernel = tracefs.events();
    let triggers = host.session.triggers();
    let geometry = *host.chip.geometry();
    let recorded = host.finish();
    assert!(triggers.contains("(fired 100, failed 0)"), "{triggers}");

    // The session has only the VMM's events between begin and end.
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    let mut inside = false;
    let events = recorded.events();
    for event in &events {
        match &*event.name {
            "measured_begin" => inside = true,
            "measured_end" => inside = false,
            "vcpu_run" | "vcpu_exit" => {
                // The store of `measured_end` causes an exit. The host records this exit before it handles
                // the point.
                assert!(inside, "{event:?}");
                *names.entry(&event.name).or_default() += 1;
            }
            _ => {}
        }
    }
    // In each round, two points cause the exits: `inside` and `measured_end`. An entry follows each of the
    // points `measured_begin` and `inside`.
    assert_eq!(names, BTreeMap::from([("vcpu_exit", 2 * ROUNDS), ("vcpu_run", 2 * ROUNDS)]));

    // The kernel's trace has the same stores.
    let emit = layout::DEVICE
        + geometry.window_offset(Region::Control)
        + geometry.control_pages_offset()
        + register::EMIT;
    assert!(emit < layout::DEVICE + PAGE * 1024);
    let store = format!("kvm_mmio: mmio write len 8 gpa {emit:#x} val 0x");
    let stores = kernel.iter().filter(|event| event.text.starts_with(&store)).count() as u64;
    assert_eq!(stores, 2 * ROUNDS);
    capability::used("tracefs");
}

#[test]
fn a_rule_fires_for_its_name_and_arguments_only() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    off("test_*");
    let session = &host.session;
    session.add_trigger("on go if arg1==5 and arg2==0xff do events test_pair on").unwrap();
    session.add_trigger("on go if arg1==-1 do events test_pair off").unwrap();

    for (name, words, on) in [
        ("stop", &[5, 0xff][..], false),
        ("go", &[5, 1], false),
        ("go", &[5], false),
        ("go", &[], false),
        ("go", &[5, 0xff, 9], true),
        ("go", &[6, 0xff], true),
        ("go", &[u64::MAX], false),
    ] {
        point(session, name, words);
        // The rule acts before the call returns, and therefore before the guest continues.
        assert_eq!(enabled!(trace::test_pair), on, "{name} {words:?}");
    }
    assert!(!enabled!(trace::test_other));
}

#[test]
fn rules_for_one_name_act_in_their_order() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    off("test_*");
    let first = host.session.add_trigger("on go do events test_pair on").unwrap();
    host.session.add_trigger("on go do events test_pair off, events test_other on").unwrap();
    point(&host.session, "go", &[]);
    assert!(!enabled!(trace::test_pair) && enabled!(trace::test_other));

    host.session.remove_trigger(first).unwrap();
    host.session.add_trigger("on go do events test_pair on").unwrap();
    point(&host.session, "go", &[]);
    assert!(enabled!(trace::test_pair));
}

#[test]
fn callbacks_come_in_order_on_another_thread() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let here = thread::current().id();
    let callback = move |fired: &hypertrace_trace::trigger::Fired| {
        assert_ne!(thread::current().id(), here);
        log.lock().unwrap().push((fired.rule, fired.seq));
    };
    host.session.register_callback("note", Arc::new(callback));
    let a = host.session.add_trigger("on a do call note").unwrap();
    let b = host.session.add_trigger("on b do call note, call note").unwrap();

    for name in ["a", "b", "a"] {
        point(&host.session, name, &[]);
    }

    wait_until("notifications", || seen.lock().unwrap().len() == 4);
    assert_eq!(*seen.lock().unwrap(), [(a, 7), (b, 7), (b, 7), (a, 7)]);
    assert!(host.session.triggers().ends_with("0 waiting, 4 done, 0 dropped\n"));
}

#[test]
fn actions_that_do_not_fit_the_queue_are_counted() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let door = Arc::clone(&gate);
    host.session.register_callback("wait", Arc::new(move |_| drop(door.lock().unwrap())));
    host.session.add_trigger("on go do call wait").unwrap();

    for _ in 0..2000 {
        point(&host.session, "go", &[]);
    }
    drop(closed);

    wait_until("answers", || host.session.triggers().contains(" 0 waiting"));
    let list = host.session.triggers();
    let words: Vec<&str> = list.split([' ', ',', '\n']).collect();
    let number = |what: &str| -> u64 {
        words[words.iter().position(|word| *word == what).unwrap() - 1].parse().unwrap()
    };
    assert!(number("dropped") > 0, "{list}");
    assert_eq!(number("done") + number("dropped"), 2000, "{list}");
}

#[test]
fn the_guests_own_events_follow_a_moment_later() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    let state = ProducerState::new();
    let client = host.lease(0, &state, "guest");
    host.session.add_trigger("on quiet do events noise* off").unwrap();
    event!(client: &client, "noise", n = 1u64);
    host.chip.drain_all();

    point(&host.session, "quiet", &[]);
    assert!(host.session.triggers().contains(" 1 waiting"));
    host.chip.drain_all();
    assert!(host.session.triggers().contains(" 0 waiting, 1 done"));
    client.poll();
    let is_on = hypertrace::is_on(hypertrace_abi::schema::mask_slot("noise"));
    assert!(!is_on);
    client.release();
}

#[test]
fn the_guests_own_events_are_switched_by_the_last_point() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    let state = ProducerState::new();
    let client = host.lease(0, &state, "guest");
    let session = &host.session;
    event!(client: &client, "murmur", n = 1u64);
    host.chip.drain_all();
    let quiet = session.add_trigger("on quiet do events murmur off").unwrap();
    session.add_trigger("on loud do events murmur on").unwrap();

    for name in ["quiet", "loud", "quiet", "loud", "quiet"] {
        point(session, name, &[]);
    }
    session.remove_trigger(quiet).unwrap();

    assert!(session.triggers().contains(" 2 waiting"));
    host.chip.drain_all();
    assert!(session.triggers().contains(" 0 waiting, 2 done"));
    client.poll();
    assert!(!hypertrace::is_on(hypertrace_abi::schema::mask_slot("murmur")));
    client.release();
}

#[test]
fn rules_are_added_and_removed_while_points_are_made() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    let session = &host.session;
    let (done, points) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while done.load(Relaxed) == 0 {
                    point(session, "go", &[1]);
                    points.fetch_add(1, Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while done.load(Relaxed) == 0 {
                session.begin_pass();
                session.end_pass();
            }
        });
        for rules in 0..500 {
            let rule = session.add_trigger("on go if arg1==1 do events test_pair on").unwrap();
            while points.load(Relaxed) < rules {
                thread::yield_now();
            }
            session.remove_trigger(rule).unwrap();
        }
        done.store(1, Relaxed);
    });
}

#[test]
fn an_invalid_rule_is_refused_with_the_expected_syntax() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    for (rule, expected) in [
        ("", "expected \"on NAME\""),
        ("on x", "expected \"do ACTION\""),
        ("on 1x do events a on", "expected an event's name"),
        ("on x if y==1 do events a on", "expected argN==VALUE"),
        ("on x if arg0==1 do events a on", "expected argN==VALUE"),
        ("on x if arg1==one do events a on", "expected argN==VALUE"),
        ("on x do", "expected \"do ACTION\""),
        ("on x do dance", "expected an action"),
        ("on x do events a maybe", "expected on or off"),
        ("on x do events a;b on", "expected a pattern"),
        ("on x do kernel /nowhere on", "cannot open /nowhere/tracing_on"),
        ("on x do call nobody", "no callback \"nobody\""),
    ] {
        let error = host.session.add_trigger(rule).unwrap_err().to_string();
        assert!(error.contains(expected), "{rule:?}: {error}");
    }
    for _ in 0..MAX_RULES {
        host.session.add_trigger("on x do events a on").unwrap();
    }
    let error = host.session.add_trigger("on x do events a on").unwrap_err();
    assert!(error.to_string().contains("more than 256 rules"), "{error}");
}

#[test]
fn a_rule_can_be_removed_however_often_rules_were_changed() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    let add = || host.session.add_trigger("on x do events a on");
    let first = add().unwrap();
    let mut changes = 1;
    let refused = loop {
        match add() {
            Ok(number) => host.session.remove_trigger(number).unwrap(),
            Err(refused) => break refused.to_string(),
        }
        changes += 2;
    };
    assert!(refused.contains("change 1024 times at most"), "{refused}");
    assert!((MAX_CHANGES - 2..MAX_CHANGES).contains(&changes), "{changes}");
    host.session.remove_trigger(first).unwrap();
    assert_eq!(host.session.triggers().lines().count(), 1);
}

/// A rule that was removed keeps its files open until the session ends.
#[test]
fn a_rule_that_comes_and_goes_opens_its_instance_once() {
    let _alone = alone();
    let host = Host::new(geometry(1));
    let instance = tempfile::tempdir().unwrap();
    let tracing_on = instance.path().join("tracing_on");
    fs::write(&tracing_on, "0").unwrap();
    let rule = format!("on x do kernel {} on", instance.path().display());

    for _ in 0..20 {
        let number = host.session.add_trigger(&rule).unwrap();
        point(&host.session, "x", &[]);
        assert_eq!(fs::read_to_string(&tracing_on).unwrap(), "1");
        fs::write(&tracing_on, "0").unwrap();
        host.session.remove_trigger(number).unwrap();
    }

    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    assert_eq!(links.filter(|link| *link == tracing_on).count(), 1);
}
