// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets in the form that Perfetto's viewers expect from version 58 on. Perfetto's own package decodes the
//! packets here. No importer of that version runs in these tests.

use crate::perfetto::{READER, SCRIPT, session, with_boot_time};
use hypertrace_test_support::guest_mode::TIDS;
use hypertrace_test_support::two_kernels::World;
use hypertrace_test_support::{made, trace_dat, vcpu};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_timeline::regions::Part;
use made::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use trace_dat::{Page, TraceDat};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Exports sessions as one trace. Returns the packets, or `None`, with a report, if no program can decode the
/// packets.
fn packets(sessions: &[&Path]) -> Option<Vec<Value>> {
    let python = capability::program(READER)?;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let mut export = HYPERTRACE.command(["export", "--to", "perfetto", "-o"]);
    let ran = run(export.arg(&trace).args(sessions));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let shown = run(Command::new(python).args([SCRIPT, "--show"]).arg(trace)).ok();
    capability::used(READER);
    Some(shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Returns the events of a type, in the order of the file.
fn events<'a>(packets: &'a [Value], kind: &str) -> Vec<&'a Value> {
    packets.iter().filter(|packet| packet["track_event"]["type"] == kind).collect()
}

/// Returns the descriptions of tracks, by id. If a track has several descriptions, the last one counts.
fn tracks(packets: &[Value]) -> BTreeMap<u64, &Value> {
    let described = packets.iter().map(|packet| &packet["track_descriptor"]);
    described.filter(|of| !of.is_null()).map(|of| (number(&of["uuid"]), of)).collect()
}

/// Returns a number. JSON has numbers of 64 bits as texts. Returns 0 if there is no number.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// Returns the names of a described track and of the tracks around it, the outermost first.
fn path(tracks: &BTreeMap<u64, &Value>, track: u64) -> Vec<String> {
    let of = tracks[&track];
    let mut path = match number(&of["parent_uuid"]) {
        0 => Vec::new(),
        parent => self::path(tracks, parent),
    };
    let name = [&of["name"], &of["thread"]["thread_name"], &of["process"]["process_name"]];
    path.push(name.iter().find_map(|name| name.as_str()).unwrap_or("?").to_owned());
    path
}

/// Returns the thread id at the end of the name of the thread's track.
fn tid_of(track: &Value) -> u64 {
    let name = track["name"].as_str().unwrap();
    name.rsplit(['-', ' ', '/']).next().unwrap().parse().unwrap()
}

/// Makes a session of a host with a thread of the VMM, and the trace of the host's kernel.
fn of_host(trace: TraceDat, pages: &[Page]) -> Made {
    let host = Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]);
    let made = Made::of_boot(Some(BOOT)).stream("host-003-0000", &[Packet::host(3), host]);
    made.kernel(&trace.cpu(pages));
    with_boot_time(&made, 5_000_000_000);
    made
}

#[test]
fn the_first_packets_are_the_machines_then_the_clocks_of_guests_then_those_of_the_host() {
    let first = session();
    with_boot_time(&first, 5_000_000_000);
    let other = Packet::guest(0).lease(10_000, 7, "worker").event(20_000, DISK_READ, &[5, 6]);
    let other = Made::of_boot(Some(BOOT)).stream("guest-000-0000", &[Packet::guest(0), other]);

    for (sessions, count) in [(vec![first.path()], 2), (vec![first.path(), other.path()], 4)] {
        let Some(packets) = packets(&sessions) else { return };
        let of = |kind: &str, packet: &Value| {
            packet.get(kind).map(|_| (kind.to_owned(), number(&packet["machine_id"])))
        };
        let kinds = Vec::from_iter(
            packets
                .iter()
                .map(|packet| of("system_info", packet).or_else(|| of("clock_snapshot", packet))),
        );
        let machines = (0..count).map(|machine| ("system_info".to_owned(), machine));
        // Each machine has two sequences.
        let clocks = (1..count).chain([0]).flat_map(|machine| [machine; 2]);
        let clocks = clocks.map(|machine| ("clock_snapshot".to_owned(), machine));
        let wanted = Vec::from_iter(machines.chain(clocks).map(Some));
        assert_eq!(kinds[..wanted.len()], wanted);
        assert!(kinds[wanted.len()..].iter().all(Option::is_none), "{kinds:?}");
    }
}

#[test]
fn a_function_has_its_name_or_its_address_and_its_end_has_no_name() {
    let events = r#"[
        {"id":16,"schema":"function_entry(address:x64)","reference_point":false},
        {"id":17,"schema":"function_exit(address:x64)","reference_point":false},
        {"id":18,"schema":"a_begin(id:u64)","reference_point":false},
        {"id":19,"schema":"a_end(id:u64)","reference_point":false}]"#;
    let guest = Packet::guest(0).lease(10_000, 7, "program");
    let guest = guest.event(20_000, 16, &[0x401_000]).event(21_000, 16, &[0x402_000]);
    let guest = guest.event(22_000, 17, &[0x402_000]).event(23_000, 17, &[0x401_000]);
    let guest = guest.event(24_000, 18, &[1]).event(25_000, 19, &[1]);
    let made = Made::of_programs(events).stream("guest-000-0000", &[Packet::guest(0), guest]);

    let Some(packets) = packets(&[made.path()]) else { return };

    let names = |kind| Vec::from_iter(self::events(&packets, kind).iter().map(|of| &of["name"]));
    assert_eq!(names("TYPE_SLICE_BEGIN"), ["0x401000", "0x402000", "a"]);
    assert_eq!(names("TYPE_SLICE_END"), [&Value::Null; 3]);
}

#[test]
fn between_two_states_of_one_name_is_a_state_without_a_name() {
    let lease = Packet::new(1, 0, 0).with64(80, 9).event_str(1, 1, &[9, 50, 60, 0], b"program");
    let packet = lease.event(20_000, vcpu::BEGIN, &[1, 0]).event(50_000, vcpu::END, &[1]);
    let made =
        Made::of_programs(vcpu::EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), packet]);
    // The thread waits for one thread, and then for another thread.
    let page = Page::at(vcpu::HOST_BASE)
        .switch(10_000, (0, "swapper"), 0, (60, "program"))
        .switch(15_000, (60, "program"), 0, (70, "first"))
        .switch(5_000, (70, "first"), 1, (71, "second"))
        .switch(5_000, (71, "second"), 1, (60, "program"))
        .switch(20_000, (60, "program"), 1, (0, "swapper"));
    let all = trace_dat::recorded_with_all(BOOT, None, "");
    made.kernel(&TraceDat::new("x86-tsc").option(all).cpu(&[page]));
    let intervals = run(HYPERTRACE.command(["regions", "--intervals"]).arg(made.path())).stdout;
    let parts = intervals.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let part = |line: Value| Part::ALL.into_iter().find(|part| part.key() == line["part"]).unwrap();
    let parts = Vec::from_iter(parts.map(|line| part(line).label()));
    assert!(parts.windows(2).any(|pair| pair[0] == pair[1]), "{intervals}");

    let Some(packets) = packets(&[made.path()]) else { return };

    let states = events(&packets, "TYPE_STATE");
    let of_tracks = BTreeSet::from_iter(states.iter().map(|state| number(&state["track"])));
    assert_eq!(of_tracks.len(), 1);
    let names = Vec::from_iter(states.iter().map(|state| state["name"].as_str()));
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    assert_eq!(Vec::from_iter(names.into_iter().flatten()), parts);
    // A state without a name takes no time.
    let gaps = states.windows(2).filter(|pair| pair[0]["name"].is_null());
    let at = |state: &Value| number(&state["at"]);
    assert!(gaps.clone().count() > 0);
    assert!(gaps.clone().all(|pair| at(pair[0]) == at(pair[1])), "{states:?}");
}

#[test]
fn the_states_of_a_guests_thread_have_the_parts_of_both_kernels_and_a_track_of_the_guest() {
    let made = World::new(3).made();
    with_boot_time(&made, 5_000_000_000);
    let intervals = run(HYPERTRACE.command(["regions", "--intervals"]).arg(made.path())).stdout;
    let mut expected = BTreeMap::<(u64, u64), Vec<String>>::new();
    for line in intervals.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let part = Part::ALL.into_iter().find(|part| part.key() == line["part"]).unwrap();
        let of = (u64::from(line["of_guest"] == true), number(&line["tid"]));
        expected.entry(of).or_default().push(part.label().into());
    }
    // A thread of the host has the same number as a thread of the guest.
    let both = expected.keys().filter(|(_, tid)| expected.contains_key(&(1, *tid)));
    assert!(both.count() > 1, "{:?}", expected.keys());

    let Some(packets) = packets(&[made.path()]) else { return };

    let tracks = tracks(&packets);
    let mut found = BTreeMap::<(u64, u64), Vec<String>>::new();
    for packet in events(&packets, "TYPE_STATE") {
        let Some(name) = packet["name"].as_str() else { continue };
        let of = tracks[&number(&packet["track"])];
        if of["name"] != "parts" {
            continue;
        }
        let thread = tracks[&number(&of["parent_uuid"])];
        let tid = match number(&thread["thread"]["tid"]) {
            // If a thread's process is unknown, the thread's number is in the track's name.
            0 => tid_of(thread),
            tid => tid,
        };
        found.entry((number(&packet["machine_id"]), tid)).or_default().push(name.into());
    }
    assert_eq!(found, expected);
    let of_guest = found.iter().filter(|((machine, _), _)| *machine == 1);
    let parts = BTreeSet::from_iter(of_guest.flat_map(|(_, parts)| parts.clone()));
    for part in
        [Part::Guest, Part::HostInterrupt, Part::Vmm, Part::Stolen, Part::Behind, Part::Halted]
    {
        assert!(parts.contains(part.label()), "{part:?}: {parts:?}");
    }
}

#[test]
fn the_threads_of_a_guest_are_below_the_thread_that_is_proven_to_run_their_cpu() {
    for (world, is_proven) in [(World::new(3), true), (World::swapped(5), false)] {
        let made = world.made();
        with_boot_time(&made, 5_000_000_000);
        let Some(packets) = packets(&[made.path()]) else { return };
        let tracks = tracks(&packets);
        let mut found = BTreeMap::<u64, Vec<String>>::new();
        for packet in events(&packets, "TYPE_STATE") {
            let of = tracks[&number(&packet["track"])];
            if of["name"] == "guest threads" {
                assert_eq!(number(&packet["machine_id"]), 0);
                let names = found.entry(number(&of["parent_uuid"])).or_default();
                names.extend(packet["name"].as_str().map(str::to_owned));
            }
        }
        let found = found.into_iter().map(|(of, names)| (tid_of(tracks[&of]), names));
        let of_cpu = |cpu: usize| {
            let names = world.had(cpu).into_iter().map(|tid| format!("t{tid}-{tid}"));
            (u64::from(TIDS[cpu]), Vec::from_iter(names))
        };
        let expected = [0, 1].into_iter().filter(|_| is_proven).map(of_cpu);
        assert_eq!(BTreeMap::from_iter(found), BTreeMap::from_iter(expected));
    }
}

#[test]
fn states_of_threads_are_those_of_the_release_or_of_linux_4_4() {
    let pages = || {
        let page = Page::at(1_000_000);
        // Threads that were idle, parked, preempted and asleep.
        let page = page.switch(1_000, (7, "idle"), 0x80, (8, "parked"));
        let page = page.switch(1_000, (8, "parked"), 0x40, (9, "preempted"));
        let page = page.switch(1_000, (9, "preempted"), 0x100, (10, "asleep"));
        [page.switch(1_000, (10, "asleep"), 1, (0, "swapper"))]
    };
    let recorded = || TraceDat::new("x86-tsc").option(trace_dat::recorded_with_all(BOOT, None, ""));
    let unnamed = of_host(recorded(), &pages());
    let uname = (5, b"Linux guest 6.1.0-40 x86_64\0".to_vec());
    let named = of_host(recorded().option(uname), &pages());

    for (made, release, wanted) in [
        (unnamed, Value::Null, [0x402, 0x200, 0, 1]),
        (named, "6.1.0-40".into(), [0x80, 0x40, 0x100, 1]),
    ] {
        let Some(packets) = packets(&[made.path()]) else { return };
        assert_eq!(packets[0]["system_info"]["utsname"]["release"], release, "{}", packets[0]);
        let bundles = packets.iter().map(|packet| &packet["ftrace_events"]["compact_sched"]);
        let states =
            bundles.flat_map(|of| of["switch_prev_state"].as_array().into_iter().flatten());
        assert_eq!(Vec::from_iter(states.map(number)), wanted);
    }
}

#[test]
fn arguments_are_nested_and_large_numbers_are_texts() {
    let large = u64::MAX.to_string();
    let shown = |made: &Made| {
        let packets = packets(&[made.path()])?;
        Some(move |name: &str| {
            let found = packets.iter().find(|packet| packet["name"] == name);
            found.unwrap_or_else(|| panic!("{name}"))["arguments"].clone()
        })
    };
    let Some(of_session) = shown(&session()) else { return };
    assert_eq!(of_session("disk_read")["lba"], 5);
    assert_eq!(of_session("all")["w"], json!([7, large]));
    assert_eq!(of_session("all")["e"], 0xdead);
    let reference = of_session("checkpoint")["reference"].clone();
    assert_eq!((&reference["client"], &reference["seq"]), (&json!(0), &json!(1)), "{reference}");

    let events = r#"[
        {"id":16,"schema":"a_begin(id:u64,lba:u64,len:u64)","reference_point":false},
        {"id":17,"schema":"a_end(id:u64)","reference_point":false}]"#;
    let guest = Packet::guest(0).event(20_000, 16, &[1, u64::MAX, 8]).event(30_000, 17, &[1]);
    let made = Made::with_json(&made::json(&clocks(), events, "[]"));
    let of_region = shown(&made.stream("guest-000-0000", &[Packet::guest(0), guest])).unwrap();
    assert_eq!(of_region("a")["field"], json!({"lba": large, "len": 8}));
}

#[test]
fn a_process_is_named_after_a_thread_and_then_after_its_own() {
    let lease = |packet: Packet, at, tid: u64, name: &str| {
        packet.with64(80, 9 + tid).event_str(at, 1, &[9 + tid, 50, tid, 0], name.as_bytes())
    };
    let worker = lease(Packet::guest(0), 10_000, 60, "worker").event(20_000, DISK_READ, &[5, 6]);
    let main = lease(Packet::guest(1), 30_000, 50, "main").event(40_000, DISK_READ, &[7, 8]);
    let made = Made::new().stream("guest-000-0000", &[Packet::guest(0), worker]);
    let made = made.stream("guest-001-0000", &[Packet::guest(1), main]);

    let Some(packets) = packets(&[made.path()]) else { return };

    let described =
        packets.iter().filter(|packet| !packet["track_descriptor"]["process"].is_null());
    let processes = described.map(|packet| {
        let process = &packet["track_descriptor"]["process"];
        (number(&packet["machine_id"]), number(&process["pid"]), &process["process_name"])
    });
    assert_eq!(Vec::from_iter(processes), [(1, 50, &json!("worker")), (1, 50, &json!("main"))]);
}

#[test]
fn tracks_are_in_groups_and_the_lines_of_a_thread_in_order() {
    let vcpus = [vcpu::Vcpu::rounds(0, 3, 3)];
    let made = vcpu::session(&vcpus);
    made.kernel(&vcpu::trace(&vcpus, |_| true));

    let Some(packets) = packets(&[made.path()]) else { return };

    let tracks = tracks(&packets);
    let mut ranked = BTreeMap::<Vec<String>, Vec<(u64, String)>>::new();
    for (track, of) in &tracks {
        let mut path = path(&tracks, *track);
        let Some(name) = path.pop().filter(|_| !path.is_empty()) else { continue };
        let parent = tracks[&number(&of["parent_uuid"])];
        assert_eq!(parent["child_ordering"], "EXPLICIT", "{parent}");
        ranked.entry(path).or_default().push((number(&of["sibling_order_rank"]), name));
    }
    ranked.values_mut().for_each(|children| children.sort_unstable());
    let children = |of: &str| {
        let children = ranked.iter().find(|(path, _)| path.last().is_some_and(|name| name == of));
        Vec::from_iter(children.unwrap().1.iter().map(|(_, name)| name.as_str()))
    };
    assert_eq!(children("vcpu0"), ["parts", "exits", "kernel events"]);
    let guest = format!("guest of {}", made.path().display());
    assert_eq!(children(&guest), ["guest/0"], "{ranked:?}");
}

/// There are two recordings of one boot, between which nobody knows what a thread does.
#[test]
fn a_thread_does_not_run_from_one_recording_to_the_next() {
    let page = |at| {
        let page = Page::at(at).switch(1_000, (0, "swapper"), 0, (43, "vcpu0"));
        [page.mmio(5_000, 43, 0x17)]
    };
    let ends = |option: &dyn Fn() -> (u16, Vec<u8>)| {
        let trace = || TraceDat::new("x86-tsc").option(option());
        let first = of_host(trace(), &page(1_000_000));
        let second = of_host(trace(), &page(9_000_000));
        packets(&[first.path(), second.path()])
    };
    let Some(whole) = ends(&|| trace_dat::recorded_with_all(BOOT, None, "")) else { return };
    let mut steps = Vec::new();
    for bundle in whole.iter().map(|packet| &packet["ftrace_events"]["compact_sched"]) {
        let list =
            |name: &str| Vec::from_iter(bundle[name].as_array().into_iter().flatten().map(number));
        let times = list("switch_timestamp").into_iter().scan(0, |now, time| {
            *now += time;
            Some(*now)
        });
        steps.extend(times.zip(list("switch_next_pid")));
    }
    steps.sort_unstable();
    let begin = steps[0].0;
    let since = Vec::from_iter(steps.iter().map(|(at, tid)| (at - begin, *tid)));
    let wanted = [(0, 43), (5_000, 0), (8_000_000, 43), (8_005_000, 0)];
    assert_eq!(since, wanted);

    let some = ends(&|| trace_dat::recorded_with_threads(BOOT, "43")).unwrap();
    let states = some.iter().map(|packet| (packet, &packet["generic_kernel_task_state_event"]));
    let states = states.filter(|(_, of)| !of.is_null()).map(|(packet, of)| {
        assert_eq!(of["state"], "TASK_STATE_RUNNING");
        (number(&packet["timestamp"]) - begin, number(&of["tid"]))
    });
    let mut states = Vec::from_iter(states);
    states.sort_unstable();
    assert_eq!(states, wanted);
}

/// The process's first thread has no lease.
#[test]
fn a_process_is_named_after_the_thread_that_only_the_kernel_has_seen() {
    let lease = Packet::new(1, 0, 0).with64(80, 9).event_str(40_000, 1, &[9, 77, 60, 0], b"worker");
    let made =
        Made::of_programs(vcpu::EVENTS).stream("guest-000-0000", &[Packet::new(1, 0, 0), lease]);
    let page = Page::at(vcpu::HOST_BASE).switch(10_000, (0, "swapper"), 0, (77, "vcpu0")).switch(
        10_000,
        (77, "vcpu0"),
        1,
        (0, "swapper"),
    );
    made.kernel(&TraceDat::new("x86-tsc").cpu(&[page]));

    let Some(packets) = packets(&[made.path()]) else { return };

    let tracks = tracks(&packets);
    let processes = tracks.values().filter(|of| of["process"]["pid"] == 77);
    let names = Vec::from_iter(processes.map(|of| &of["process"]["process_name"]));
    assert_eq!(names, ["vcpu0"]);
}

/// The thread's lease comes after the first of the kernel's events.
#[test]
fn the_kernels_events_of_a_thread_are_on_one_track() {
    let lease = |packet: Packet, at, tid: u64| {
        packet.with64(80, 9 + tid).event_str(at, 1, &[9 + tid, 42, tid, 0], b"vcpu0")
    };
    let first = lease(Packet::host(3), 1_000, 44).event(2_000, VCPU_EXIT, &[6]);
    let second = lease(Packet::host(3).after(&first), 40_000, 43).event(41_000, VCPU_EXIT, &[6]);
    let made = Made::of_boot(Some(BOOT)).stream("host-003-0000", &[Packet::host(3), first, second]);
    let page = Page::at(1_000_000).mmio(10_000, 43, 1).mmio(80_000, 43, 2);
    made.kernel(&TraceDat::new("x86-tsc").option(trace_dat::recorded(BOOT, 0)).cpu(&[page]));

    let Some(packets) = packets(&[made.path()]) else { return };

    let events = packets.iter().filter(|packet| packet["name"] == "kvm:kvm_mmio");
    let events = Vec::from_iter(events.map(|packet| number(&packet["track"])));
    assert!(events.len() == 2 && events[0] == events[1], "{events:?}");
    let leased = tracks(&packets).into_values().any(|of| of["thread"]["tid"] == "43");
    assert!(leased, "the thread has a track of its own by its lease");
}
