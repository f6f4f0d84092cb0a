//! `session.json`: what a session is, for its writer here and for readers.
//!
//! CTF has no place for several of these facts: schemas by their text, exact
//! clock bases, losses by cause. The file is replaced by rename, once a second at most.
//! The event classes are in [`classes.jsonl`](crate::classes). Nothing is checked here but the types.

use crate::origin::Origin;
pub use crate::packet::Domain;
pub use crate::tsc::{GuestTsc, GuestTscJson, MAX_TSC_SHIFT};
use hypertrace_abi::ring::Losses;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The file's name in a session's directory.
pub const FILE: &str = "session.json";
/// The folder in it of what was recovered after its process was killed: a session of its own.
pub const RECOVERED: &str = "recovered";
/// The folder in it of a recording of the host's kernel that has not ended.
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
    /// The trace's UUID, as in the metadata.
    pub uuid: String,
    /// The UUID of the session of a killed process that this one completes, whose directory it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes: Option<String>,
    /// When the session was created, Unix time.
    pub started_unix_ns: i64,
    /// CLOCK_BOOTTIME at that instant, nanoseconds. `None` from versions that did not read it, and in what was recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_boot_ns: Option<i64>,
    /// The process and the machine that recorded it. `None` for one that opens no file, as it writes a journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The span in whose course it was recorded, as in a `traceparent` header of W3C's Trace Context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<String>,
    /// The host's boot whose raw counter the host's clock is, as in
    /// `/proc/sys/kernel/random/boot_id`. `None` if that could not be read, and from versions
    /// that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Whether the guests are programs of the host itself: there is no VMM.
    #[serde(default)]
    pub programs: bool,
    /// Whether a process beside the VMM recorded it, as `hypertrace serve` does: it does not know the vCPUs' threads.
    #[serde(default, skip_serializing_if = "is_false")]
    pub served: bool,
    /// Clocks; the index is the id.
    pub clocks: Vec<ClockJson>,
    /// TSCs of guests, as the VMM said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_tscs: Vec<GuestTscJson>,
    /// Streams: one per client of the guest, one per host ring.
    #[serde(default)]
    pub streams: Vec<StreamJson>,
    /// Lost events that belong to no stream: of processes that had no client, and of
    /// threads of the VMM that found no host ring.
    #[serde(default)]
    pub lost_unattached: u64,
    /// Counters of the device, as the VMM gives them.
    #[serde(default)]
    pub device: BTreeMap<String, u64>,
    /// Whether the session was ended by its owner.
    pub finished: bool,
}

/// A linear map from raw ticks to Unix time, and the stream class that uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockJson {
    /// Clock and stream class.
    pub id: u32,
    /// The producer.
    pub domain: Domain,
    /// `tsc`, `cntvct` (AArch64), `counter` (another one, or unknown) or `monotonic_raw`.
    pub kind: String,
    /// Clock epoch.
    pub epoch: u32,
    /// Ticks per second.
    pub frequency: u64,
    /// Raw ticks at tick 0 of the streams.
    pub base: u64,
    /// Unix time at the base, nanoseconds.
    pub offset_ns: i64,
    /// Ticks per second of the host's raw counter.
    pub host_frequency: u64,
    /// Whether only the guest's word, or nothing, speaks for the frequency.
    #[serde(default, skip_serializing_if = "is_false")]
    pub assumed: bool,
    /// Whether its records were in the rings before the host served them, or before the machine was
    /// restored: nothing relates their times to the host's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub found: bool,
    /// Why its first client stamps with this clock, as the guest says: a name of the ABI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// An event class, besides the reserved ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventJson {
    /// Dense id, as in the packets.
    pub id: u32,
    /// Canonical schema text.
    pub schema: String,
    /// Whether client, cpu, seq and guest time come before the fields.
    #[serde(default)]
    pub reference_point: bool,
}

/// Description of one stream, with its counts of events and losses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamJson {
    /// The producer.
    pub domain: Domain,
    /// Client, or number of the host ring.
    pub client: u32,
    /// The clock of its last packet.
    #[serde(default)]
    pub clock: u32,
    /// Its last holder's name; as the guest says, so escape it.
    #[serde(default)]
    pub name: String,
    /// Ring events: declared ones, 2016 ones, untyped ones.
    #[serde(default)]
    pub events: u64,
    /// Reference points of this client, in all streams.
    #[serde(default)]
    pub reference_points: u64,
    /// Lost because the ring was full.
    #[serde(default)]
    pub lost_full: u64,
    /// Lost inside an interrupted emit.
    #[serde(default)]
    pub lost_busy: u64,
    /// Lost by threads that had no client, in processes that had this one.
    #[serde(default)]
    pub lost_unattached: u64,
    /// Overwritten before they were read (flight recorder), not readable, or left in the ring at the end because
    /// the disk was full.
    #[serde(default)]
    pub lost_overwritten: u64,
    /// Passed the mask and not wanted.
    #[serde(default)]
    pub filtered: u64,
    /// Guest faults by kind.
    #[serde(default)]
    pub faults: BTreeMap<String, u64>,
}

impl StreamJson {
    /// Returns the lost events, all causes.
    pub fn lost(&self) -> u64 {
        self.causes().total()
    }

    /// Adds the counts of a later part of the stream, whose clock and name are newer.
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

    /// Returns the lost events by their causes.
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
    /// If it cannot be encoded.
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
            // Its every byte takes six.
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
