// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A guest with two vCPUs, its kernel and the host's, made event by event. The tests know when each vCPU's
//! thread was in guest mode, and which events of the guest's kernel lie within these times.

use crate::machine::Random;
use crate::made::{
    BOOT, CHECKPOINT_POINT, DISK_READ, EVENTS, GHZ, GUEST_BASE, Made, Packet, START_NS, clock,
    json, with_boot, with_pieces,
};
use crate::trace_dat::{
    Counted, KVM_EXIT_ID, KVM_WRITE_TSC_OFFSET, Page, SCHED_SWITCH_ID, TraceDat,
    recorded_with_tscs, switch,
};

/// Ticks of the guest's TSC minus ticks of the host's TSC. Both TSCs have one tick each nanosecond.
pub const OFFSET: i64 = -995_000;
pub const MS: u64 = 1_000_000;
/// Length of the recordings in nanoseconds.
pub const END: u64 = 200 * MS;
/// Threads of the two vCPUs.
pub const TIDS: [u32; 2] = [100, 101];

/// Id of the event with pieces of the guest's recording.
const PIECES: u32 = 21;

pub const KVM_ENTRY_ID: u16 = 104;
pub const KVM_ENTRY: &str = "name: kvm_entry
ID: 104
COMMON\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;

print fmt: \"vcpu %u\", REC->vcpu_id
";

/// Time, id, thread and payload of an event of the host's kernel.
pub type Seen = (u64, u16, u32, Vec<u8>);

/// A vCPU's events: the events of its thread in the host's kernel, and the host times of the guest kernel's
/// events.
#[derive(Clone, Default)]
pub struct Vcpu {
    pub host: Vec<Seen>,
    pub guest: Vec<u64>,
}

impl Vcpu {
    fn new(number: usize) -> Vcpu {
        let (tid, mut vcpu, mut now) = (TIDS[number], Vcpu::default(), 2 * MS);
        let mut random = Random(number as u64);
        while now < END {
            now += random.in_range(50_000, 400_000) as u64;
            vcpu.host.push((now, KVM_ENTRY_ID, tid, vec![number as u8, 0, 0, 0]));
            let stay = random.in_range(50_000, 400_000) as u64;
            // The guest's kernel also has an event just after the entry, and an event just before the exit.
            vcpu.guest.extend([now + 1, now + stay / 2, now + stay - 1]);
            now += stay;
            vcpu.host.push((now, KVM_EXIT_ID, tid, vec![0; 20]));
        }
        vcpu
    }

    /// Lets the thread lose the CPU after the last exit.
    pub fn halted(mut self) -> Vcpu {
        let (last, tid) = self.host.last().map(|seen| (seen.0, seen.2)).unwrap();
        let payload = switch((tid, "vcpu"), 1, (9, "other"));
        self.host.push((last + 1_000, SCHED_SWITCH_ID, tid, payload));
        self
    }
}

/// Contents of the recordings, before the files are made.
#[derive(Clone)]
pub struct Recorded {
    pub vcpus: [Vcpu; 2],
    /// Events that each CPU of the host loses: the index of each lost event among the CPU's events, and
    /// whether the recorder counts the loss.
    pub lost: [Vec<(usize, Counted)>; 2],
    /// Text of the recorder's list of TSCs, followed by options.
    pub words: String,
    /// Options of the host's recording.
    pub options: Vec<(u16, Vec<u8>)>,
    /// Raw ticks of the events of each of the guest's CPUs.
    pub guest: Vec<Vec<u64>>,
}

/// Returns the recorder's text about a guest's TSC with this offset to the host's TSC.
pub fn word(offset: i64) -> String {
    format!("31-9:{offset}:1:0:{MS}:{END}")
}

pub fn recorded() -> Recorded {
    let vcpus = [0, 1].map(Vcpu::new);
    let guest = vcpus.iter().map(|vcpu| raw(&vcpu.guest)).collect();
    let (lost, words, options) = (Default::default(), word(OFFSET), Vec::new());
    Recorded { vcpus, lost, words, options, guest }
}

pub fn raw(times: &[u64]) -> Vec<u64> {
    times.iter().map(|time| time.wrapping_add_signed(OFFSET)).collect()
}

impl Recorded {
    /// Makes a session with the recordings of both kernels. The vCPUs make a point every 10 ms. The host
    /// handles a point 2 ms after the guest's reading, and the guest continues 2 ms later.
    pub fn made(&self) -> Made {
        let clocks = [
            clock(0, "host", 0, GHZ, 0, START_NS),
            clock(1, "guest", 0, GHZ, GUEST_BASE, START_NS + 990_000),
        ];
        let events = with_pieces(EVENTS, PIECES);
        let json = json(&format!("[{}]", clocks.join(",")), &events, "[]");
        let mut made = Made::with_json(&with_boot(&json, Some(BOOT)));
        for client in [0, 1] {
            let tid = u64::from(TIDS[client as usize]);
            let thread = Packet::host(client).with64(80, tid);
            let mut thread = thread.event_str(1, 1, &[tid, 42, tid, 0], b"vcpu");
            let mut ring = Packet::guest(client);
            for point in 0..19 {
                let at = (5 + 10 * point) * MS;
                let own = raw(&[at])[0];
                let payload = [client.into(), client.into(), point, own, point];
                thread = thread.flagged(at + 2 * MS, CHECKPOINT_POINT, 1, &payload, 0);
                ring = ring.event(own + 4 * MS - GUEST_BASE, DISK_READ, &[at + 4 * MS, 0]);
            }
            if client == 0 && !self.guest.is_empty() {
                ring = ring.recording((END, PIECES), &self.guest());
            }
            made = made
                .stream(&format!("guest-{client}"), &[Packet::guest(client), ring])
                .stream(&format!("host-{client}"), &[Packet::host(client), thread]);
        }
        let options = recorded_with_tscs(BOOT, &self.words);
        let trace = TraceDat::new("x86-tsc").format("kvm", KVM_ENTRY);
        let mut trace = trace.format("kvm", KVM_WRITE_TSC_OFFSET).option(options);
        trace.options.extend(self.options.iter().cloned());
        for (vcpu, lost) in self.vcpus.iter().zip(&self.lost) {
            let lost = |number| lost.iter().find(|(at, _)| *at == number).map(|(_, of)| *of);
            trace = trace.cpu(&Page::all_but(&vcpu.host, lost));
        }
        made.kernel(&trace);
        made
    }

    /// Makes the recording of the guest's kernel.
    pub fn guest(&self) -> TraceDat {
        let origin = b"hypertrace 0.1.0; source=tracefs; guest_clock=1\0".to_vec();
        let event = |raw: &u64| (*raw, SCHED_SWITCH_ID, 7, switch((7, "a"), 0, (8, "b")));
        let cpus = self.guest.iter().map(|cpu| Vec::from_iter(cpu.iter().map(event)));
        let trace = TraceDat::new("x86-tsc").option((9, origin));
        cpus.fold(trace, |trace, events| trace.cpu(&Page::all(&events)))
    }
}
