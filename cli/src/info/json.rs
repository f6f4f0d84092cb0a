//! What is known of sessions, as JSON. docs/json.md has the same members with their types: `schema` compares both.

use super::Opened;
use super::clocks::{in_ns, measured, moved, points_in_rings};
use super::counts::Counts;
use hypertrace_format::origin::Origin;
use hypertrace_timeline::clock::host::uuid_text;
use hypertrace_timeline::clock::{ClockMap, Contradicted, Residuals};
use hypertrace_timeline::{
    ClockMaps, ComparedTsc, CpuStat, GuestCpu, GuestTsc, KernelStat, KvmWord, StreamStat, clock,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Deref;

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Session {
    dir: String,
    uuid: String,
    started_unix_ns: i64,
    origin: Option<Origin>,
    trace_parent: Option<String>,
    finished: bool,
    boot_id: Option<String>,
    frequency: u64,
    anchor: Point,
    is_placed: bool,
    moved_ns: i64,
    missing: u64,
    device: BTreeMap<String, u64>,
    unusable_reference_points: u64,
    streams: Vec<Stream>,
    total: Stream,
    clocks: Vec<Clock>,
    without_points: Vec<WithoutPoints>,
    guest_tscs: Vec<OfVmm>,
    kvm_tscs: Vec<OfKvm>,
    guest_cpus: Vec<Cpu>,
    kernel: Option<Kernel>,
    guest_kernels: Vec<Kernel>,
    kernel_error: Option<String>,
    kernel_limits: Option<Limits>,
}

/// Counts of a stream, or of all.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Stream {
    domain: Option<String>,
    client: Option<u32>,
    name: Option<String>,
    packets: u64,
    records: u64,
    events: u64,
    reference_points: u64,
    lost: u64,
    lost_full: u64,
    lost_busy: u64,
    lost_unattached: u64,
    lost_overwritten: u64,
    filtered: u64,
    faults_total: u64,
    faults: BTreeMap<String, u64>,
}

/// Counts of a kernel's trace.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Kernel {
    file: Option<String>,
    clock: Option<u32>,
    losses_known: bool,
    facts: BTreeMap<String, String>,
    cpus: Vec<KernelCpu>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct KernelCpu {
    buffer: String,
    cpu: u32,
    events: u64,
    lost: u64,
    uncounted_losses: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Limits {
    used: usize,
    left_out: usize,
}

/// A value of a counter, and its Unix time.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Point {
    raw: u64,
    unix_ns: i64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Clock {
    id: u32,
    client: Option<u32>,
    kind: Option<String>,
    declared_hz: Option<u64>,
    assumed: bool,
    found: bool,
    reason: Option<String>,
    least_hz: Option<f64>,
    most_hz: Option<f64>,
    has_another_rate: bool,
    readings: usize,
    points_in_rings: u64,
    bound_ns: Option<Bounds>,
    usual_width_ns: Option<u64>,
    room_for_jumps_ns: Option<u64>,
    residuals_ns: Distances,
    jumps: usize,
    first_jumps: Vec<Jump>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Bounds {
    p50: u64,
    p99: u64,
    max: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Distances {
    to_host: Option<u64>,
    from_host: Option<u64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Jump {
    ahead: bool,
    least_ns: u64,
    measured_ns: Option<u64>,
    measured_ppm: Option<f64>,
    before: Point,
    after: Point,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct WithoutPoints {
    clock: u32,
    clients: usize,
    has_bound: bool,
}

/// The VMM's word on a client's TSC.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct OfVmm {
    clock: u32,
    client: u32,
    offset: i64,
    multiplier: u64,
    shift: u32,
    is_used: bool,
    has_possible_rate: bool,
    limits: usize,
    contradicting: usize,
    worst: Option<Worst>,
    room_ns: Room,
    residuals_ns: Distances,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Worst {
    raw: u64,
    unix_ns: i64,
    by_ns: u64,
    is_upper: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Room {
    earlier: Option<u64>,
    later: Option<u64>,
}

/// KVM's word on a client's TSC.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct OfKvm {
    clock: u32,
    client: u32,
    contradicted: usize,
    is_ambiguous: bool,
    used: Vec<Used>,
    is_outside: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Used {
    offset: i64,
    multiplier: u64,
    shift: u32,
    from_unix_ns: i64,
    until_unix_ns: i64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Cpu {
    clock: u32,
    cpu: u32,
    events: usize,
    threads: Vec<u32>,
}

/// A session whose clocks are described.
struct Of<'r> {
    session: &'r hypertrace_timeline::Session,
    maps: &'r ClockMaps,
}

impl Session {
    /// Returns what is known of a session. `first`: the one on whose timeline it is placed.
    pub fn of(
        first: Option<&hypertrace_timeline::Session>,
        opened: &Opened<'_>,
        counts: &Counts<'_>,
    ) -> Session {
        let Opened { session, maps, unread, .. } = *opened;
        let Counts { stat, kernel, guests, .. } = counts;
        let (json, counter) = (session.json().deref(), session.counter());
        let (raw, unix_ns) = counter.anchor();
        let of = Of { session, maps };
        let without_points = maps.without_points(session).into_iter();
        Session {
            dir: session.dir().to_string_lossy().into_owned(),
            uuid: json.uuid.clone(),
            started_unix_ns: json.started_unix_ns,
            origin: json.origin.clone(),
            trace_parent: json.trace_parent.clone(),
            finished: json.finished,
            boot_id: counter.boot_id().map(uuid_text),
            frequency: counter.frequency(),
            anchor: Point { raw, unix_ns },
            is_placed: first
                .is_some_and(|first| std::ptr::eq(first, session) || session.is_placed_with(first)),
            moved_ns: moved(session),
            missing: stat.missing,
            device: json.device.clone(),
            unusable_reference_points: maps.unusable(),
            streams: stat.streams.iter().map(Stream::of).collect(),
            total: Stream::of(&stat.total),
            clocks: maps.iter().map(|map| of.clock(map)).collect(),
            without_points: without_points
                .map(|(clock, (clients, has_bound))| WithoutPoints { clock, clients, has_bound })
                .collect(),
            guest_tscs: maps.compared_tscs().map(|compared| of.vmm(&compared)).collect(),
            kvm_tscs: maps.kvm_words().map(|word| of.kvm(word)).collect(),
            guest_cpus: maps.guest_cpus().map(Cpu::of).collect(),
            kernel: kernel.as_ref().map(|stat| Kernel::of(None, stat)),
            guest_kernels: guests
                .iter()
                .map(|(file, stat)| Kernel::of(Some(file.clone()), stat))
                .collect(),
            kernel_error: unread.map(ToString::to_string),
            kernel_limits: maps.of_kernel().map(|(used, left_out)| Limits { used, left_out }),
        }
    }
}

impl Of<'_> {
    fn unix_ns(&self, host: i64) -> i64 {
        self.session.unix_ns(host).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Returns a point of a clock's map.
    fn point(&self, id: u32, x: i64, y: i64) -> Point {
        let base = self.session.json().clock(id).map_or(0, |clock| clock.base);
        Point { raw: base.saturating_add(x.unsigned_abs()), unix_ns: self.unix_ns(y) }
    }

    fn clock(&self, (id, client, map): (u32, Option<u32>, &ClockMap)) -> Clock {
        let Of { session, maps } = *self;
        let described = session.json().clock(id);
        let (least_hz, most_hz) = map.frequencies().unzip();
        let bounds =
            |b: clock::Bounds| Bounds { p50: in_ns(b.p50), p99: in_ns(b.p99), max: in_ns(b.max) };
        Clock {
            id,
            client,
            kind: described.map(|clock| clock.kind.clone()),
            declared_hz: described.map(|clock| clock.frequency),
            assumed: described.is_some_and(|clock| clock.assumed),
            found: described.is_some_and(|clock| clock.found),
            reason: described.and_then(|clock| clock.reason.clone()),
            least_hz,
            most_hz,
            has_another_rate: map.has_another_rate(),
            readings: map.constraints(),
            points_in_rings: match map.constraints() {
                0 => points_in_rings(session, id),
                _ => 0,
            },
            bound_ns: maps.bounds((id, client, map)).map(bounds),
            usual_width_ns: map.width().map(in_ns),
            room_for_jumps_ns: maps.room_for_jumps((id, client, map)).map(in_ns),
            residuals_ns: maps.residuals((id, client, map)).into(),
            jumps: map.segments() - 1,
            first_jumps: map.jumps().iter().map(|jump| self.jump(id, jump)).collect(),
        }
    }

    fn jump(&self, id: u32, jump: &clock::Jump) -> Jump {
        let (measured_ppm, ns) = measured(self.session, id, jump).unzip();
        Jump {
            ahead: jump.ahead,
            least_ns: in_ns(jump.least),
            measured_ns: ns.map(|ns| ns as u64),
            measured_ppm,
            before: self.point(id, jump.before.x, jump.before.y),
            after: self.point(id, jump.after.x, jump.after.y),
        }
    }

    fn vmm(&self, compared: &ComparedTsc) -> OfVmm {
        let ComparedTsc { clock, client, tsc, agreement: found, .. } = *compared;
        let worst = |Contradicted { point, is_upper, by, .. }: Contradicted| {
            let Point { raw, unix_ns } = self.point(clock, point.x, point.y);
            Worst { raw, unix_ns, by_ns: in_ns(by), is_upper }
        };
        OfVmm {
            clock,
            client,
            offset: tsc.offset,
            multiplier: tsc.multiplier,
            shift: tsc.shift,
            is_used: found.is_agreed(),
            has_possible_rate: found.has_possible_rate,
            limits: found.constraints,
            contradicting: found.contradicting,
            worst: found.worst.map(worst),
            room_ns: Room { earlier: found.room.0.map(in_ns), later: found.room.1.map(in_ns) },
            residuals_ns: found.residuals.into(),
        }
    }

    fn kvm(&self, (clock, client, word): (u32, u32, &KvmWord)) -> OfKvm {
        let used = word.used().map(|(GuestTsc { offset, multiplier, shift }, from, until)| Used {
            offset,
            multiplier,
            shift,
            from_unix_ns: self.unix_ns(from),
            until_unix_ns: self.unix_ns(until),
        });
        OfKvm {
            clock,
            client,
            contradicted: word.contradicted,
            is_ambiguous: word.is_ambiguous,
            used: used.collect(),
            is_outside: word.is_outside,
        }
    }
}

impl From<Residuals> for Distances {
    fn from(of: Residuals) -> Distances {
        Distances { to_host: of.to_host.map(in_ns), from_host: of.from_host.map(in_ns) }
    }
}

impl Cpu {
    fn of(GuestCpu { clock, cpu, events, threads, .. }: &GuestCpu) -> Cpu {
        Cpu { clock: *clock, cpu: *cpu, events: *events, threads: threads.clone() }
    }
}

impl Stream {
    fn of(stat: &StreamStat) -> Stream {
        let (domain, client) = stat.stream.unzip();
        Stream {
            name: domain.map(|_| stat.name.clone()),
            domain: domain.map(|domain| domain.name().to_owned()),
            client,
            packets: stat.packets,
            records: stat.records,
            events: stat.events,
            reference_points: stat.reference_points,
            lost: stat.lost,
            lost_full: stat.causes.full,
            lost_busy: stat.causes.busy,
            lost_unattached: stat.causes.unattached,
            lost_overwritten: stat.causes.overwritten,
            filtered: stat.filtered,
            faults_total: stat.faults,
            faults: stat.faults_by_kind.clone(),
        }
    }
}

impl Kernel {
    pub fn of(file: Option<String>, stat: &KernelStat) -> Kernel {
        let cpu = |cpu: &CpuStat| KernelCpu {
            buffer: cpu.buffer.to_string(),
            cpu: cpu.cpu,
            events: cpu.events,
            lost: cpu.lost,
            uncounted_losses: cpu.uncounted,
        };
        let facts = stat.facts.iter().map(|(name, fact)| ((*name).to_owned(), fact.clone()));
        Kernel {
            file,
            clock: stat.clock,
            losses_known: stat.losses_known,
            facts: facts.collect(),
            cpus: stat.cpus.iter().map(cpu).collect(),
        }
    }
}
