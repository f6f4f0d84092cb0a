// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Helpers for regions of sessions that tests make event by event.
#![allow(dead_code)] // each test uses a part

use hypertrace_test_support::made::{Made, Packet};
use hypertrace_test_support::vcpu::{self, Vcpu, What};
use hypertrace_timeline::regions::{NotCounted, Options, Regions};
use hypertrace_timeline::{ClockMaps, KernelTrace, Recording, Session};

/// Reads a session with its kernel.dat.
pub fn read(made: &Made, options: &Options) -> Regions {
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let traces = Vec::from_iter(KernelTrace::of_session(0, &session).unwrap());
    Regions::of(&Recording::of([(session, maps)], traces), options).unwrap()
}

pub fn all(made: &Made) -> Regions {
    read(made, &Options::default())
}

pub fn with_kernel(vcpus: &[Vcpu], keep: impl Fn(usize) -> bool) -> Made {
    let made = vcpu::session(vcpus);
    made.kernel(&vcpu::trace(vcpus, keep));
    made
}

/// Begins the packet of a program with its lease.
pub fn lease(client: u32, time: u64, token: u64, pid: u64, tid: u64) -> Packet {
    lease_in(Packet::new(1, client, 0), time, token, pid, tid)
}

pub fn lease_in(packet: Packet, time: u64, token: u64, pid: u64, tid: u64) -> Packet {
    packet.with64(80, token).event_str(time, 1, &[token, pid, tid, 0], b"program")
}

/// Writes a client's stream.
pub fn stream(made: Made, client: u32, packets: &[Packet]) -> Made {
    let first = [Packet::new(1, client, 0)];
    made.stream(&format!("guest-{client:03}-0000"), &[&first, packets].concat())
}

/// Makes a session of a program with this thread, and these events after its lease.
pub fn program(tid: u64, events: impl FnOnce(Packet) -> Packet) -> Made {
    stream(Made::of_programs(vcpu::EVENTS), 0, &[events(lease(0, 1, 9, 50, tid))])
}

/// Returns the number of counted regions, and how many regions were not counted for each reason.
pub fn counts(regions: &Regions) -> (u64, Vec<(&'static str, u64)>) {
    let mut kinds = Vec::new();
    for (kind, name) in NotCounted::ALL {
        let count: u64 = regions.groups.iter().map(|g| g.not_counted[kind as usize]).sum();
        if count > 0 {
            kinds.push((name, count));
        }
    }
    (regions.groups.iter().map(|group| group.count).sum(), kinds)
}

pub const B: u32 = vcpu::BEGIN;
pub const E: u32 = vcpu::END;

/// Makes vCPUs' events of regions: client, time, id of the event, id of the region.
pub fn events(events: &[(u32, u64, u32, u64)]) -> Vec<Vcpu> {
    let clients = events.iter().map(|(client, ..)| client + 1).max().unwrap_or(0);
    let mut vcpus: Vec<Vcpu> = (0..clients).map(|number| Vcpu::new(number, 1)).collect();
    for (client, time, event, id) in events {
        let fields: &[u64] = if *event == B { &[*id, 0] } else { &[*id] };
        vcpus[*client as usize].events.push((*time, What::Guest(*event, fields.to_vec())));
    }
    vcpus
}

/// Schemas of the events of the regions `a` and `empty`.
pub const EMPTY_EVENTS: &str = r#"[
    {"id":16,"schema":"a_begin(id:u64,v:u64)","reference_point":false},
    {"id":17,"schema":"a_end(id:u64)","reference_point":false},
    {"id":18,"schema":"empty_begin(id:u64)","reference_point":false},
    {"id":19,"schema":"empty_end(id:u64)","reference_point":false}
]"#;

/// Makes a region of a client that lasts from one time to another time.
pub fn region(packet: Packet, event: u32, id: u64, from: u64, to: u64) -> Packet {
    let fields: &[u64] = if event == 16 { &[id, id] } else { &[id] };
    packet.event(from, event, fields).event(to, event + 1, &[id])
}
