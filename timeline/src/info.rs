// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Describes a session and the accuracy of the session's clocks, for `hypertrace info`.
//!
//! ```no_run
//! # fn main() -> Result<(), hypertrace_timeline::Error> {
//! use hypertrace_timeline::{Given, Recording, info};
//!
//! let recording = Recording::open(&[Given::new("session")])?;
//! let session = info::Session::of(&recording, 0)?;
//! println!("{} of {} events are lost", session.total.lost, session.total.events);
//! for clock in &session.clocks {
//!     let bound_ns = clock.bound_ns.as_ref().map(|bound| bound.p99);
//!     println!("clock {}: {bound_ns:?}", clock.id);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The types of this module serialize to the JSON of `hypertrace info --json`. Times are in nanoseconds.

use crate::clock::{self, ClockMap, Contradicted, FRACTION, Residuals};
use crate::error::{Error, Result};
use crate::inputs::ctf::{self, ClockMaps, ComparedTsc, Domain, GuestTsc, KvmWord};
use crate::inputs::kernel::{KernelStat, KernelTrace};
use crate::recording::Recording;
use crate::stat::{SessionStat, StreamStat};
use hypertrace_format::error::Warning;
use hypertrace_format::origin::Origin;
use hypertrace_format::uuid;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Deref;

pub use crate::inputs::ctf::GuestCpu;

/// Description of a session.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Session {
    /// Directory of the session.
    pub dir: String,
    /// UUID of the session.
    pub uuid: String,
    /// Unix time of the session's start.
    pub started_unix_ns: i64,
    /// Process and machine that recorded the session. Escape the texts.
    pub origin: Option<Origin>,
    /// The span during which the session was recorded, in the form of a `traceparent` header.
    pub trace_parent: Option<String>,
    /// Whether the writer ended the session. If false, the session is being written, or its writer was
    /// killed.
    pub finished: bool,
    /// ID of the host's boot.
    pub boot_id: Option<String>,
    /// Frequency of the host's counter in Hz.
    pub frequency: u64,
    /// One value of the host's counter, with the Unix time of the value.
    pub anchor: Point,
    /// Whether the session has the same counter and anchor as the recording's first session.
    pub is_placed: bool,
    /// Start of the session as the common anchor gives it, minus the start as the session's own anchor gives
    /// it. The value is positive if the first of these two starts is later.
    pub moved_ns: i64,
    /// Number of events that `session.json` counts but no file holds: see [`SessionStat::missing`].
    pub missing: u64,
    /// Counters of the device, by name.
    pub device: BTreeMap<String, u64>,
    /// Number of reference points with an impossible client or guest time.
    pub unusable_reference_points: u64,
    /// Counts of each stream. The host's streams come first.
    pub streams: Vec<StreamStat>,
    /// Sums over all streams.
    pub total: StreamStat,
    /// Clocks of guests, and clocks of clients that differ from the clock of their guest.
    pub clocks: Vec<Clock>,
    /// For each clock, the number of clients without reference points.
    pub without_points: Vec<WithoutPoints>,
    /// TSCs of clients as the VMM describes them.
    pub guest_tscs: Vec<VmmTsc>,
    /// TSCs of clients as KVM describes them.
    pub kvm_tscs: Vec<KvmTsc>,
    /// CPUs of guests, with the threads that ran them according to the times in guest mode.
    pub guest_cpus: Vec<GuestCpu>,
    /// Counts of the events of the host's kernel.
    pub kernel: Option<KernelStat>,
    /// Counts of the events of guests' kernels.
    pub guest_kernels: Vec<KernelStat>,
    /// Why the events of the host's kernel are not used.
    pub kernel_error: Option<String>,
    /// Counts of the limits that the host kernel's events set on guests' clocks.
    pub kernel_limits: Option<Limits>,
    /// Faults of the kernels' traces that could be read in spite of these faults.
    #[serde(skip)]
    pub warnings: Vec<Warning>,
    /// Why the events of guests' kernels could not be counted. The guest determines the contents of its
    /// kernel's recording, so a fault in the recording is no error of the session.
    #[serde(skip)]
    pub not_counted: Vec<Error>,
}

/// Numbers of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Limits {
    /// Number of limits that are used.
    pub used: usize,
    /// Number of limits that are not used because they contradict the points or each other.
    pub left_out: usize,
}

/// A value of a counter, with the Unix time of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Point {
    /// Value of the counter, in ticks.
    pub raw: u64,
    /// Unix time of the value.
    pub unix_ns: i64,
}

/// Accuracy of a guest's clock: see [`ClockMaps`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Clock {
    /// Id of the clock in the session.
    pub id: u32,
    /// Client with this clock, if the client's clock differs from the clock of other clients. `None` if the
    /// clock is the clock of all clients that agree.
    pub client: Option<u32>,
    /// Kind of the clock: `tsc`, `cntvct` and so on, as the guest says. Escape it.
    pub kind: Option<String>,
    /// Declared rate in Hz.
    pub declared_hz: Option<u64>,
    /// Whether the declared rate is assumed.
    pub assumed: bool,
    /// Whether the clock's records were already in the rings when the host began to serve the rings, or when
    /// the machine was restored. Nothing relates the times of such records to the host's time.
    pub found: bool,
    /// Why the guest has this clock.
    pub reason: Option<String>,
    /// Lowest rate that the points allow, in Hz.
    pub least_hz: Option<f64>,
    /// Highest rate that the points allow, in Hz.
    pub most_hz: Option<f64>,
    /// Whether the points contradict the declared rate.
    pub has_another_rate: bool,
    /// Number of readings that reference points limit.
    pub readings: usize,
    /// Number of reference points that are records in rings, if the clock has only such points. If not, 0.
    pub points_in_rings: u64,
    /// Bounds on the error at a client's own readings. `None` if any of the bounds is unknown.
    pub bound_ns: Option<Bounds>,
    /// Usual distance between the lower and the upper limit of a reading.
    pub usual_width_ns: Option<u64>,
    /// Length of the longest jump that may be missed.
    pub room_for_jumps_ns: Option<u64>,
    /// Distances between the limits and the times that reports show.
    pub residuals_ns: Distances,
    /// Number of jumps of the clock.
    pub jumps: usize,
    /// First jumps of the clock.
    pub first_jumps: Vec<Jump>,
}

/// Quantiles of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Bounds {
    /// Bound that holds at half of the readings.
    pub p50: u64,
    /// Bound that holds at 99 % of the readings.
    pub p99: u64,
    /// Bound that holds at all readings.
    pub max: u64,
}

/// Medians of the distances between shown times and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Distances {
    /// Time from a guest's reading until the host handles the point.
    pub to_host: Option<u64>,
    /// Time from the host's handling of the point until the guest's next reading.
    pub from_host: Option<u64>,
}

/// A jump of a clock, and the two points that prove the jump.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Jump {
    /// Whether the clock jumped ahead. If false, the clock lost time.
    pub ahead: bool,
    /// Least length of the jump.
    pub least_ns: u64,
    /// Time between the two points, if a clock of another rate could satisfy both points without a jump.
    pub measured_ns: Option<u64>,
    /// Difference between this other rate and the declared rate, in parts per million.
    pub measured_ppm: Option<f64>,
    /// Last point before the jump.
    pub before: Point,
    /// First point after the jump.
    pub after: Point,
}

/// Clients of one clock that have no reference points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct WithoutPoints {
    /// Id of the clock.
    pub clock: u32,
    /// Number of clients of the clock that have no reference points.
    pub clients: usize,
    /// Whether points of the clock's other clients limit the error of these clients.
    pub has_bound: bool,
}

/// A client's TSC as the VMM describes it: the host's TSC is multiplied, shifted to the right, and increased
/// by an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct VmmTsc {
    /// Id of the clock.
    pub clock: u32,
    /// The client.
    pub client: u32,
    /// Offset in ticks of the guest's counter.
    pub offset: i64,
    /// Multiplier of the host's TSC.
    pub multiplier: u64,
    /// Bits by which the product is shifted to the right.
    pub shift: u32,
    /// Whether times of the client are computed from this TSC.
    pub is_used: bool,
    /// Whether the rate that the multiplier gives is possible.
    pub has_possible_rate: bool,
    /// Number of limits that points set.
    pub limits: usize,
    /// Number of limits that contradict this TSC.
    pub contradicting: usize,
    /// Limit that contradicts this TSC most.
    pub worst: Option<Worst>,
    /// Largest error of the offset in each direction that no limit contradicts.
    pub room_ns: Room,
    /// Distances between the limits and the times computed from this TSC.
    pub residuals_ns: Distances,
}

/// A limit that contradicts a TSC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Worst {
    /// Value of the guest's counter.
    pub raw: u64,
    /// Unix time of the limit.
    pub unix_ns: i64,
    /// Time by which the limit contradicts the TSC.
    pub by_ns: u64,
    /// Whether the limit is an upper limit: the guest read the value at `unix_ns` or earlier. If false, the
    /// guest read the value at `unix_ns` or later.
    pub is_upper: bool,
}

/// Times by which a TSC could be shifted without a contradiction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Room {
    /// Time by which the TSC could be shifted to earlier times.
    pub earlier: Option<u64>,
    /// Time by which the TSC could be shifted to later times.
    pub later: Option<u64>,
}

/// A client's TSC as KVM describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct KvmTsc {
    /// Id of the clock.
    pub clock: u32,
    /// The client.
    pub client: u32,
    /// Number of offsets that the points contradict.
    pub contradicted: usize,
    /// Whether offsets of several VMs or vCPUs fit the points.
    pub is_ambiguous: bool,
    /// Offsets from which times are computed.
    pub used: Vec<UsedTsc>,
    /// Whether these offsets put events of the guest's kernel outside of guest mode.
    pub is_outside: bool,
}

/// A client's TSC as KVM describes it for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct UsedTsc {
    /// Offset in ticks of the guest's counter.
    pub offset: i64,
    /// Multiplier of the host's TSC.
    pub multiplier: u64,
    /// Bits by which the product is shifted to the right.
    pub shift: u32,
    /// Unix time from which the offset holds.
    pub from_unix_ns: i64,
    /// Unix time until which the offset holds.
    pub until_unix_ns: i64,
}

impl Session {
    /// Counts and describes the session with this index in a recording.
    ///
    /// # Errors
    /// If the session or the trace of its host's kernel is damaged.
    ///
    /// # Panics
    /// If the recording has no session of this index.
    pub fn of(recording: &Recording, number: usize) -> Result<Session> {
        let (session, maps) = &recording.sessions[number];
        let unread = recording.unread_of(number);
        let kernel = recording.kernel_of(number).filter(|_| unread.is_none());
        let kernel = kernel.map(KernelTrace::stat).transpose()?;
        let is_guest = |trace: &&KernelTrace| {
            trace.session() == Some(number) && trace.path().parent() != Some(session.dir())
        };
        let (mut guest_kernels, mut not_counted) = (Vec::new(), Vec::new());
        for trace in recording.traces.iter().filter(is_guest) {
            let name = trace.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            match trace.stat() {
                Ok(stat) => guest_kernels.push(KernelStat { file: Some(name), ..stat }),
                Err(why) => not_counted.push(why),
            }
        }
        let kernels = kernel.iter().chain(&guest_kernels);
        let warnings = kernels.flat_map(|stat| stat.warnings.iter().cloned()).collect();
        let SessionStat { streams, total, missing } = SessionStat::of(session)?;
        let (json, counter) = (session.json().deref(), session.counter());
        let (raw, unix_ns) = counter.anchor();
        let of = Of { session, maps };
        let without_points = maps.without_points(session).into_iter();
        Ok(Session {
            dir: session.dir().to_string_lossy().into_owned(),
            uuid: json.uuid.clone(),
            started_unix_ns: json.started_unix_ns,
            origin: json.origin.clone(),
            trace_parent: json.trace_parent.clone(),
            finished: json.finished,
            boot_id: counter.boot_id().map(uuid::text),
            frequency: counter.frequency(),
            anchor: Point { raw, unix_ns },
            is_placed: number == 0 || session.is_placed_with(&recording.sessions[0].0),
            moved_ns: moved_ns(session),
            missing,
            device: json.device.clone(),
            unusable_reference_points: maps.unusable(),
            streams,
            total,
            clocks: maps.iter().map(|map| of.clock(map)).collect(),
            without_points: without_points
                .map(|(clock, (clients, has_bound))| WithoutPoints { clock, clients, has_bound })
                .collect(),
            guest_tscs: maps.compared_tscs().map(|compared| of.vmm(&compared)).collect(),
            kvm_tscs: maps.kvm_words().map(|word| of.kvm(word)).collect(),
            guest_cpus: maps.guest_cpus().cloned().collect(),
            kernel,
            guest_kernels,
            kernel_error: unread.map(ToString::to_string),
            kernel_limits: maps.of_kernel().map(|(used, left_out)| Limits { used, left_out }),
            warnings,
            not_counted,
        })
    }
}

/// Context for the description of a session's clocks.
struct Of<'r> {
    session: &'r ctf::Session,
    maps: &'r ClockMaps,
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

    fn vmm(&self, compared: &ComparedTsc) -> VmmTsc {
        let ComparedTsc { clock, client, tsc, agreement: found, .. } = *compared;
        let worst = |Contradicted { point, is_upper, by, .. }: Contradicted| {
            let Point { raw, unix_ns } = self.point(clock, point.x, point.y);
            Worst { raw, unix_ns, by_ns: in_ns(by), is_upper }
        };
        VmmTsc {
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

    fn kvm(&self, (clock, client, word): (u32, u32, &KvmWord)) -> KvmTsc {
        let used = |(GuestTsc { offset, multiplier, shift }, from, until)| UsedTsc {
            offset,
            multiplier,
            shift,
            from_unix_ns: self.unix_ns(from),
            until_unix_ns: self.unix_ns(until),
        };
        KvmTsc {
            clock,
            client,
            contradicted: word.contradicted,
            is_ambiguous: word.is_ambiguous,
            used: word.used().map(used).collect(),
            is_outside: word.is_outside,
        }
    }
}

impl From<Residuals> for Distances {
    fn from(of: Residuals) -> Distances {
        Distances { to_host: of.to_host.map(in_ns), from_host: of.from_host.map(in_ns) }
    }
}

/// Converts units of the timeline to nanoseconds, rounded up.
pub fn in_ns(units: u64) -> u64 {
    units.div_ceil(FRACTION.unsigned_abs())
}

/// Returns the start of the session as the common anchor gives it, minus the start as the session's own
/// anchor gives it, in nanoseconds.
pub fn moved_ns(session: &ctf::Session) -> i64 {
    let json = session.json();
    let own = json.clocks.iter().find(|clock| clock.id == 0).map_or(0, |clock| clock.offset_ns);
    let common = session.unix_ns(0);
    (common - i128::from(own)).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns the number of a clock's reference points that are records in rings. The function is only for a
/// clock that has no other reference points.
pub fn points_in_rings(session: &ctf::Session, id: u32) -> u64 {
    let streams = session.json().streams.iter();
    let own = streams.filter(|stream| stream.domain == Domain::Guest && stream.clock == id);
    own.map(|stream| stream.reference_points).fold(0, u64::saturating_add)
}

/// Returns the rate at which the clock could satisfy both constraints of a jump without the jump. The first
/// number is the difference between this rate and the declared rate in ppm, and the second number is the time
/// between the constraints in ns of host time. Returns `None` if no rate satisfies both constraints.
pub fn measured(session: &ctf::Session, id: u32, jump: &clock::Jump) -> Option<(f64, f64)> {
    let frequency = session.json().clock(id)?.frequency as f64;
    let host = (i128::from(jump.after.y) - i128::from(jump.before.y)) as f64 / FRACTION as f64;
    let guest = (jump.after.x - jump.before.x) as f64 / frequency * 1e9;
    (host > 0.0).then_some(((guest / host - 1.0) * 1e6, host))
}
