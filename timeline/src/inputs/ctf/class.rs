// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Event classes: the names and types of events that have a dense id on disk.

use super::session_json::EventJson;
use crate::event::{Encoded, EventKind, Fields, Record, Reference};
use hypertrace_abi::record::{Flags, REFERENCE_PREFIX_WORDS, RESERVED, id};
use hypertrace_abi::schema::{self, Schema, Shape};
use std::sync::Arc;

/// Limit of ids. The limit is larger than the number of classes of any device, and small enough for a table
/// that is indexed by id.
const MAX_ID: u32 = 1 << 20;

/// Id and schema of an event that only sessions of older writers have.
const STAMP: (u32, &str) = (3, "stamp()");

/// An event class.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Class {
    /// Dense id.
    pub id: u32,
    /// Name of the event.
    pub name: Arc<str>,
    /// Names of the event's own fields.
    pub fields: Vec<Arc<str>>,
    /// Whether a record has a [`Reference`] before its own fields.
    pub reference_point: bool,
    text: Arc<str>,
    shape: Shape,
}

impl Class {
    fn new(id: u32, text: &str, reference_point: bool) -> Result<Class, schema::SchemaError> {
        let schema = Schema::parse(text)?;
        Ok(Class {
            id,
            name: schema.name().into(),
            fields: schema.fields().map(|f| f.name.into()).collect(),
            reference_point,
            text: text.into(),
            shape: schema.shape(),
        })
    }

    /// Returns the schema's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the part of a payload that has the class's own fields. In a reference point, this part follows
    /// the numbers that each reference point has.
    fn own<'a>(&self, payload: &'a [u64]) -> Option<&'a [u64]> {
        if self.reference_point { payload.get(REFERENCE_PREFIX_WORDS..) } else { Some(payload) }
    }

    /// Checks that a payload has exactly the right number of words. If the last field is a string, returns
    /// the string's padding.
    pub(crate) fn check(&self, payload: &[u64]) -> Option<usize> {
        self.shape.check(self.own(payload)?)
    }

    /// Returns the kind of a record of this class.
    pub(crate) fn kind(&self, flags: u16) -> EventKind {
        let flags = Flags::from_bits_retain(flags);
        match self.id {
            _ if self.reference_point => EventKind::ReferencePoint,
            id::LEASE => EventKind::Lease,
            id::TIME_FAULT => EventKind::TimeFault,
            _ if flags.contains(Flags::REFERENCE_POINT) => EventKind::ReferencePoint,
            id::HYPERTRACE => EventKind::Hypertrace,
            id::UNTYPED => EventKind::Untyped,
            _ => EventKind::Event,
        }
    }

    /// Returns the numbers before the class's own fields, if the class is a reference point.
    pub(crate) fn reference(&self, payload: &[u64]) -> Option<Reference> {
        match payload {
            [client, cpu, seq, guest_time, ..] if self.reference_point => Some(Reference {
                client: *client as u32,
                cpu: *cpu as u32,
                seq: *seq as u32,
                guest_time: *guest_time,
            }),
            _ => None,
        }
    }

    /// Returns the class's own fields of a payload that was checked.
    pub(crate) fn fields<'a>(&'a self, payload: &'a [u64]) -> Fields<'a> {
        self.own_fields(self.own(payload).unwrap_or_default())
    }

    /// Returns the fields of a checked payload that begins with the class's own fields.
    pub(crate) fn own_fields<'a>(&'a self, payload: &'a [u64]) -> Fields<'a> {
        let (class, names, shape) = (self.id, &*self.fields, &self.shape);
        Fields(Encoded::Record(Record { class, names, shape, payload }))
    }

    /// Iterates over the values of the class's own fields in a payload that was checked.
    pub(crate) fn values<'a>(
        &'a self,
        payload: &'a [u64],
    ) -> impl Iterator<Item = schema::Value<'a>> + 'a {
        self.shape.values(self.own(payload).unwrap_or_default())
    }
}

/// All classes of a session, by id.
#[derive(Clone, Debug, Default)]
pub struct Classes(Vec<Option<Class>>);

impl Classes {
    /// Makes the reserved classes and the classes of `session.json`.
    pub(crate) fn new(events: &[EventJson]) -> Result<Classes, String> {
        let mut classes = Classes::default();
        for (id, text) in RESERVED.into_iter().chain([STAMP]) {
            classes.insert(id, text, false)?;
        }
        for event in events {
            if event.id < id::FIRST {
                return Err(format!("event id {} is reserved", event.id));
            }
            classes.insert(event.id, &event.schema, event.reference_point)?;
        }
        Ok(classes)
    }

    fn insert(&mut self, id: u32, text: &str, reference_point: bool) -> Result<(), String> {
        if id >= MAX_ID {
            return Err(format!("event id {id} is too large"));
        }
        let class = Class::new(id, text, reference_point)
            .map_err(|e| format!("event {id}: {e}: {text:?}"))?;
        let at = id as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        if self.0[at].replace(class).is_some() {
            return Err(format!("event id {id} occurs twice"));
        }
        Ok(())
    }

    /// Returns the class of an id.
    pub fn get(&self, id: u32) -> Option<&Class> {
        self.0.get(id as usize)?.as_ref()
    }

    /// Iterates over all classes.
    pub fn iter(&self) -> impl Iterator<Item = &Class> {
        self.0.iter().flatten()
    }
}
