//! `session.json`: the types of a session's description, which the session's writer and the readers share.
//!
//! The file holds facts for which CTF has no place: schemas by their text, exact clock bases, losses by
//! cause. The writer replaces the file with a rename, once a second at most.
//! [`classes.jsonl`](crate::classes) has the event classes. This module checks only the types of the values.

use crate::origin::Origin;
pub use crate::packet::Domain;
pub use crate::tsc::{GuestTsc, GuestTscJson, MAX_TSC_SHIFT};
use hypertrace_abi::ring::Losses;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The file's name in a session's directory.
pub const FILE: &str = "session.json";
/// Name of a folder in a session's directory. If the process of the outer session was killed, this folder
/// holds the recovered part of the outer session. The folder is a session of its own.
pub const RECOVERED: &str = "recovered";
/// Name of a folder in a session's directory. The folder holds the recording of the host's kernel until the
/// recording ends.
pub const KERNEL_FOLDER: &str = ".kernel";
/// Value of `format`.
pub const FORMAT: &str = "hypertrace-session";
/// Value of `version`.
pub const VERSION: u32 = 2;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionJson {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// UUID of the trace, as in the metadata.
    pub uuid: String,
    /// UUID of the killed session that this session completes. The directory of this session is in the
    /// directory of the killed session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes: Option<String>,
    /// Unix time at which the session was created, in nanoseconds.
    pub started_unix_ns: i64,
    /// CLOCK_BOOTTIME at the instant of `started_unix_ns`, in nanoseconds. `None` in a recovered session, or
    /// if an older version that did not read this clock recorded the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_boot_ns: Option<i64>,
    /// The process and the machine that recorded the session. `None` if the process writes a journal, because
    /// such a process opens no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The span during which the session was recorded, in the form of a `traceparent` header of W3C's Trace
    /// Context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<String>,
    /// Identity of the host's boot, from `/proc/sys/kernel/random/boot_id`. The raw counter of the host's
    /// clock started at this boot. `None` if the file could not be read, or if an older version that did not
    /// write the boot recorded the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// True if the guests are programs of the host itself, without a VMM.
    #[serde(default)]
    pub programs: bool,
    /// True if the session's recorder is not the VMM but another process, such as `hypertrace serve`. In this
    /// case the threads of the vCPUs are unknown.
    #[serde(default, skip_serializing_if = "is_false")]
    pub served: bool,
    /// Clocks. A clock's index is its id.
    pub clocks: Vec<ClockJson>,
    /// TSCs of guests. The VMM gave these values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_tscs: Vec<GuestTscJson>,
    /// Streams: one for each client of the guest and for each host ring.
    #[serde(default)]
    pub streams: Vec<StreamJson>,
    /// Number of lost events that belong to no stream: the events of processes that had no client, and of
    /// threads of the VMM that found no host ring.
    #[serde(default)]
    pub lost_unattached: u64,
    /// Counters of the device. The VMM gives the counters' values.
    #[serde(default)]
    pub device: BTreeMap<String, u64>,
    /// True if the session's owner ended the session.
    pub finished: bool,
}

/// A linear map from raw ticks to Unix time, and the stream class that uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockJson {
    /// Id of the clock, and of the stream class that uses it.
    pub id: u32,
    /// Domain of the producers that stamp with this clock.
    pub domain: Domain,
    /// Kind of the counter: `tsc`, `cntvct` (AArch64), `monotonic_raw`, or `counter` (any other kind, or an
    /// unknown kind).
    pub kind: String,
    /// Clock epoch.
    pub epoch: u32,
    /// Frequency of the clock in ticks per second.
    pub frequency: u64,
    /// Raw ticks at tick 0 of the streams.
    pub base: u64,
    /// Unix time at the base, in nanoseconds.
    pub offset_ns: i64,
    /// Frequency of the host's raw counter in ticks per second.
    pub host_frequency: u64,
    /// True if nobody has confirmed the frequency: the guest claims this frequency, or the host assumes it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub assumed: bool,
    /// True if the clock's records were already in the rings when the host began to serve the rings, or when
    /// the machine was restored. Nothing relates the times of such records to the host's times.
    #[serde(default, skip_serializing_if = "is_false")]
    pub found: bool,
    /// Reason why the clock's first client stamps events with this clock. The guest chose the reason among
    /// the names of the ABI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// An event class whose id is not reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventJson {
    /// Dense id, as in the packets.
    pub id: u32,
    /// The class's schema, as canonical text.
    pub schema: String,
    /// True if client, cpu, seq and guest time come before the fields.
    #[serde(default)]
    pub reference_point: bool,
}

/// Description of one stream, with its counts of events and losses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamJson {
    /// Domain of the stream's producer.
    pub domain: Domain,
    /// Id of the client, or of the host ring.
    pub client: u32,
    /// Id of the clock of the stream's last packet.
    #[serde(default)]
    pub clock: u32,
    /// Name of the stream's last holder. A guest chooses its name, so escape it.
    #[serde(default)]
    pub name: String,
    /// Number of ring events: declared events, events of the 2016 interface, and untyped events.
    #[serde(default)]
    pub events: u64,
    /// Number of this client's reference points, in all streams.
    #[serde(default)]
    pub reference_points: u64,
    /// Number of events lost because the ring was full.
    #[serde(default)]
    pub lost_full: u64,
    /// Number of events lost inside an interrupted emit.
    #[serde(default)]
    pub lost_busy: u64,
    /// Number of events that were lost because a thread had no client. The thread's process had the client of
    /// this stream.
    #[serde(default)]
    pub lost_unattached: u64,
    /// Number of events that were overwritten before the drain read them (flight recorder), that were not
    /// readable, or that stayed in the ring at the end because the disk was full.
    #[serde(default)]
    pub lost_overwritten: u64,
    /// Number of events that passed the mask but were not wanted.
    #[serde(default)]
    pub filtered: u64,
    /// Guest faults by kind.
    #[serde(default)]
    pub faults: BTreeMap<String, u64>,
}

impl StreamJson {
    /// Returns the number of lost events, from all causes.
    pub fn lost(&self) -> u64 {
        self.causes().total()
    }

    /// Adds the counts of a later part of the stream, and takes the clock and the name from the later part.
    pub fn add(&mut self, later: &StreamJson) {
        self.clock = later.clock;
        if !later.name.is_empty() {
            self.name.clone_from(&later.name);
        }
        let StreamJson { events, reference_points, filtered, .. } = self;
        let StreamJson { lost_full, lost_busy, lost_unattached, lost_overwritten, .. } = later;
        for (sum, more) in [
            (events, &later.events),
            (reference_points, &later.reference_points),
            (filtered, &later.filtered),
            (&mut self.lost_full, lost_full),
            (&mut self.lost_busy, lost_busy),
            (&mut self.lost_unattached, lost_unattached),
            (&mut self.lost_overwritten, lost_overwritten),
        ] {
            *sum = sum.saturating_add(*more);
        }
        for (kind, more) in &later.faults {
            let sum = self.faults.entry(kind.clone()).or_default();
            *sum = sum.saturating_add(*more);
        }
    }

    /// Returns for each cause the number of lost events.
    pub fn causes(&self) -> Losses {
        Losses {
            full: self.lost_full,
            busy: self.lost_busy,
            unattached: self.lost_unattached,
            overwritten: self.lost_overwritten,
        }
    }
}

impl SessionJson {
    /// Returns the file's text.
    ///
    /// # Errors
    /// If the session cannot be encoded.
    pub fn text(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::Line;
    use crate::limits::{
        CLASS_BYTES, MAX_CLIENTS, MAX_GUEST_TSCS, MAX_HOST_STREAMS, MAX_NAME_BYTES,
        MAX_SESSION_CLOCKS, MAX_SESSION_JSON,
    };
    use hypertrace_abi::ring::Fault;

    #[test]
    fn the_largest_session_is_described_within_its_bound() {
        let clock = ClockJson {
            id: u32::MAX,
            domain: Domain::Guest,
            kind: "monotonic_raw".into(),
            epoch: u32::MAX,
            frequency: u64::MAX,
            base: u64::MAX,
            offset_ns: i64::MIN,
            host_frequency: u64::MAX,
            assumed: true,
            found: true,
            reason: Some("differing".into()),
        };
        let tsc = GuestTsc { offset: i64::MIN, multiplier: u64::MAX, shift: MAX_TSC_SHIFT };
        let guest_tsc = GuestTscJson { epoch: u32::MAX, client: Some(u32::MAX), tsc };
        let stream = StreamJson {
            domain: Domain::Guest,
            client: u32::MAX,
            clock: u32::MAX,
            // JSON needs six bytes for each byte of this name.
            name: "\x01".repeat(MAX_NAME_BYTES),
            events: u64::MAX,
            reference_points: u64::MAX,
            lost_full: u64::MAX,
            lost_busy: u64::MAX,
            lost_overwritten: u64::MAX,
            lost_unattached: u64::MAX,
            filtered: u64::MAX,
            faults: Fault::ALL.iter().map(|kind| (kind.name().to_owned(), u64::MAX)).collect(),
        };
        let device = (0..1000).map(|n| (format!("counter_of_a_device_{n}"), u64::MAX)).collect();
        let json = SessionJson {
            format: FORMAT.into(),
            version: VERSION,
            uuid: "8-4-4-4-12".into(),
            completes: Some("8-4-4-4-12".into()),
            started_unix_ns: i64::MAX,
            started_boot_ns: Some(i64::MAX),
            origin: Some(Origin { command: "\x01".repeat(4096), ..Origin::here() }),
            trace_parent: Some("0".repeat(55)),
            boot_id: Some("8-4-4-4-12".into()),
            programs: false,
            served: true,
            clocks: vec![clock; MAX_SESSION_CLOCKS],
            guest_tscs: vec![guest_tsc; MAX_GUEST_TSCS],
            streams: vec![stream; (MAX_CLIENTS + MAX_HOST_STREAMS) as usize],
            lost_unattached: u64::MAX,
            device,
            finished: false,
        };

        let bytes = serde_json::to_vec_pretty(&json).unwrap().len() as u64;

        assert!(bytes < MAX_SESSION_JSON, "{bytes} of {MAX_SESSION_JSON}");
        assert!(bytes > MAX_SESSION_JSON / 2, "{bytes}: the bound is loose");
    }

    #[test]
    fn a_line_of_a_class_is_within_what_the_class_pays() {
        let event = EventJson { id: u32::MAX, schema: String::new(), reference_point: false };
        let mut line = Vec::new();
        Line::Event(event).append_to(&mut line).unwrap();
        assert!(line.len() <= CLASS_BYTES, "{}", line.len());
    }
}
