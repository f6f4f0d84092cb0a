//! Identifies the slowest regions by their threads, and by the fields of the events that begin these regions.

use super::{SLOWEST, short};
use crate::output::say;
use crate::regions::rows::Shown;
use crate::report::lines::TextValue;
use hypertrace_format::error::error_chain;
use hypertrace_timeline::regions::{Group, Region, Sample};
use hypertrace_timeline::{Consumer, Error, EventRef, Recording};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::ptr;

/// Texts that tell the slowest regions apart.
pub struct Whose {
    texts: HashMap<*const Sample, Text>,
    /// Number of regions whose events have not been read yet.
    left: usize,
}

/// What the page shows about a region in addition to the duration.
#[derive(Clone, Default)]
pub struct Text {
    /// The name and number of the region's thread.
    pub thread: String,
    /// Fields of the event that begins the region, without the id, as `NAME=VALUE`. Empty if the event has no
    /// other fields.
    pub fields: String,
}

impl Whose {
    /// Reads the events that begin the slowest regions of these groups.
    pub fn of(shown: &Shown<'_>, recording: &Recording, groups: &[&Group]) -> Whose {
        let slowest = groups.iter().flat_map(|group| shown.regions.slowest(group).take(SLOWEST));
        let wanted = slowest.map(|(sample, _)| sample);
        let named = |sample| (ptr::from_ref(sample), Text::without_event(shown, sample));
        let texts: HashMap<_, _> = wanted.map(named).collect();
        let mut whose = Whose { left: texts.len(), texts };
        if let Err(why) = recording.read_regions(shown.regions, &mut whose) {
            // The page's numbers come from regions that were read before, so the page only lacks the fields.
            say(format_args!("the slowest regions have no fields: {}", error_chain(&why)));
        }
        whose
    }

    /// Returns what the page shows about a region.
    pub fn get(&self, sample: &Sample) -> Text {
        self.texts.get(&ptr::from_ref(sample)).cloned().unwrap_or_default()
    }
}

impl Consumer for Whose {
    type Error = Error;

    fn region(&mut self, region: &Region<'_>) -> Result<bool, Error> {
        if let Some(text) = self.texts.get_mut(&ptr::from_ref(region.sample)) {
            self.left -= 1;
            region.begin.into_iter().for_each(|event| text.add(event));
        }
        Ok(self.left > 0)
    }
}

impl Text {
    /// Returns what the page shows about a region whose first event was not read: the thread's name, and no
    /// fields.
    fn without_event(shown: &Shown<'_>, sample: &Sample) -> Text {
        let thread = match (shown.regions.thread(sample), sample.client()) {
            (Some((tid, Some(name))), _) => numbered(name, Some(tid)),
            (Some((tid, None)), _) => format!("thread {tid}"),
            (None, Some(client)) => format!("source {client}"),
            (None, None) => "several threads".into(),
        };
        Text { thread, fields: String::new() }
    }

    /// Adds the thread and the fields of the event that begins the region.
    fn add(&mut self, event: &EventRef<'_>) {
        let tid = event.thread.map(|thread| thread.tid);
        if let Some(name) = event.source.name.as_deref() {
            self.thread = numbered(name, tid);
        } else if let Some(tid) = tid {
            self.thread = format!("thread {tid}");
        }
        let mut fields = String::new();
        for (name, value) in event.fields.iter() {
            if !["id", "any_client"].contains(&&**name) {
                // Writing to a String does not fail.
                let _ = write!(fields, "{}{name}=", if fields.is_empty() { "" } else { " " });
                value.write(&mut TextValue(&mut fields));
            }
        }
        self.fields = short(&fields);
    }
}

fn numbered(name: &str, tid: Option<u32>) -> String {
    let name = short(name);
    tid.map_or(name.clone(), |tid| format!("{name}-{tid}"))
}
