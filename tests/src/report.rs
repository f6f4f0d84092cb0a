//! Lines of `hypertrace report --json`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Line of an event.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Version of the schema.
    pub version: u32,
    /// Nanoseconds since the session's start.
    pub t_ns: i64,
    /// Unix time in nanoseconds.
    #[serde(deserialize_with = "exact_signed")]
    pub ts_ns: i64,
    /// Error bound of `ts_ns` in nanoseconds; `None`: unknown.
    pub bound_ns: Option<u64>,
    /// Source, such as `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0`.
    pub source: String,
    /// Name of the event.
    pub event: String,
    /// Fields of the event.
    pub fields: Map<String, Value>,
    /// Further values of a reference point, besides its fields.
    pub reference: Option<Reference>,
    /// Client of the guest.
    pub client: Option<u32>,
    /// Process of the host.
    pub pid: Option<u32>,
    /// Thread of the host.
    pub tid: Option<u32>,
    /// CPU of a kernel's event.
    pub cpu: Option<u32>,
    /// Name of the thread.
    pub thread: Option<String>,
}

/// Further values of a reference point, besides its fields.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // as in the program's help
pub struct Reference {
    pub client: u32,
    pub cpu: u32,
    pub seq: u32,
    #[serde(deserialize_with = "exact")]
    pub guest_time: u64,
}

/// Reads a number, which is a string if a double would round it.
fn exact<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let value = Value::deserialize(from)?;
    number(&value).ok_or_else(|| D::Error::custom(format!("{value} is no number")))
}

/// Reads a time.
fn exact_signed<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    exact(from).map(|number| number as i64)
}

/// Reads a time that may be unknown.
fn exact_if_known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(number(&value).map(|number| number as i64))
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok().filter(|n| *n > 1 << 53))
}

/// Line of a place where events were lost.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // as in the program's help
pub struct Lost {
    pub version: u32,
    pub r#type: String,
    pub t_ns: Option<i64>,
    #[serde(deserialize_with = "exact_if_known")]
    pub ts_ns: Option<i64>,
    pub source: String,
    pub client: Option<u32>,
    pub events: u64,
    pub why: Vec<String>,
}

impl Lost {
    /// Parses a line of the output. Returns `None` for events.
    #[track_caller]
    pub fn parse(text: &str) -> Option<Lost> {
        let is_lost = text.contains(r#""type":"lost""#);
        is_lost.then(|| serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }
}

impl Line {
    /// Parses a line of the output. Returns `None` for losses.
    #[track_caller]
    pub fn parse(text: &str) -> Option<Line> {
        let parsed = || serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        Lost::parse(text).is_none().then(parsed)
    }

    /// Returns a field that is a number. A number that a double would round is a string.
    pub fn number(&self, field: &str) -> Option<u64> {
        number(self.fields.get(field)?)
    }

    /// Returns the id of the guest's client in the source.
    pub fn client(&self) -> Option<u32> {
        let (side, rest) = self.source.split_once('/')?;
        let (client, _) = rest.split_once(' ').filter(|_| ["guest", "program"].contains(&side))?;
        client.parse().ok()
    }
}
