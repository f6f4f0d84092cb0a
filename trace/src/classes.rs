//! Event classes: from the ids that guests say to the session's dense ids.
//!
//! A guest's id is a hash and may lie; a reader of the trace trusts ids to be
//! declared and lengths to be right. So ids are looked up per client, against
//! texts whose hash was computed here, and each (text, reference point or not)
//! gets one dense id for the whole session. All tables are bounded, because
//! guests fill them.

use crate::metadata::{ClassEntry, class_body};
use crate::session_json::EventJson;
use crate::wanted::Wanted;
use hypertrace_abi::record::{RESERVED, id};
use hypertrace_abi::ring::{Fault, LoggedSchema};
use hypertrace_abi::schema::{Schema, Shape, id_of};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Most schemas that one client can have.
pub const MAX_CLIENT_SCHEMAS: usize = 1024;
/// Most event classes of a session.
pub const MAX_CLASSES: usize = 4096;
/// Most bytes of schema texts of a session, so that the metadata, about four
/// times as large, can be replaced each time a schema comes.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// Most declarations: event classes times the stream classes that have them.
pub const MAX_DECLARED: usize = 16 * 1024;

/// A class that a record can be of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassRef {
    pub dense: u32,
    pub shape: Shape,
}

#[derive(Debug)]
struct Class {
    text: Arc<str>,
    /// For the metadata.
    body: Box<str>,
    shape: Shape,
    reference_point: bool,
}

/// All event classes of a session.
#[derive(Debug)]
pub(crate) struct Classes {
    /// Dense id = [`id::FIRST`] + index.
    list: Vec<Class>,
    by_text: [HashMap<Arc<str>, u32>; 2],
    text_bytes: usize,
    reserved: [Option<(Shape, Box<str>)>; id::FIRST as usize],
    /// Per clock, a bit per dense id.
    declared: Vec<Vec<u64>>,
    declarations: usize,
    /// Which of the guests' are wanted.
    pub wanted: Wanted,
    /// Something is declared that the metadata on disk does not say.
    pub changed: bool,
}

impl Classes {
    pub fn new() -> Classes {
        let mut classes = Classes {
            list: Vec::new(),
            by_text: [HashMap::new(), HashMap::new()],
            text_bytes: 0,
            reserved: [const { None }; id::FIRST as usize],
            declared: Vec::new(),
            declarations: 0,
            wanted: Wanted::default(),
            changed: true,
        };
        for (id, text) in RESERVED {
            if let Ok(schema) = Schema::parse(text) {
                let body = class_body(&schema, false).into();
                classes.reserved[id as usize] = Some((schema.shape(), body));
                // A reference point can be of these too, whatever else the
                // tables are filled with later.
                if matches!(id, id::HYPERTRACE | id::UNTYPED)
                    && let Some(class) = classes.intern(&schema, true)
                {
                    classes.declare(0, class.dense);
                }
            }
        }
        classes
    }

    /// The class of a reserved id that a producer may write.
    pub fn reserved(&self, id: u32) -> Option<ClassRef> {
        let written = matches!(id, id::LEASE | id::HYPERTRACE | id::STAMP);
        let (shape, _) = self.reserved.get(id as usize)?.as_ref().filter(|_| written)?;
        Some(ClassRef { dense: id, shape: *shape })
    }

    /// The class of reference points of a reserved id.
    pub fn reserved_reference(&self, id: u32) -> Option<ClassRef> {
        let (_, text) = RESERVED.iter().find(|(reserved, _)| *reserved == id)?;
        self.find(text, true)
    }

    fn find(&self, text: &str, reference_point: bool) -> Option<ClassRef> {
        let dense = *self.by_text[usize::from(reference_point)].get(text)?;
        let shape = self.list.get((dense - id::FIRST) as usize)?.shape;
        Some(ClassRef { dense, shape })
    }

    /// The dense id of a text; a new one if it has none. `None`: the tables
    /// are full.
    fn intern(&mut self, schema: &Schema<'_>, reference_point: bool) -> Option<ClassRef> {
        let (text, shape) = (schema.text(), schema.shape());
        if let Some(found) = self.find(text, reference_point) {
            return Some(found);
        }
        let bytes = self.text_bytes + text.len();
        if self.list.len() >= MAX_CLASSES || bytes > MAX_TEXT_BYTES {
            return None;
        }
        self.text_bytes = bytes;
        let text: Arc<str> = match self.by_text[usize::from(!reference_point)].get_key_value(text) {
            Some((text, _)) => Arc::clone(text),
            None => text.into(),
        };
        let dense = id::FIRST + self.list.len() as u32;
        let body = class_body(schema, reference_point).into();
        self.list.push(Class { text: Arc::clone(&text), body, shape, reference_point });
        self.by_text[usize::from(reference_point)].insert(text, dense);
        self.changed = true;
        Some(ClassRef { dense, shape })
    }

    /// Takes in a class as an earlier process numbered it, and declares it for
    /// clocks below `clocks`. `false`: it does not come out the same.
    pub fn restore(&mut self, dense: u32, text: &str, point: bool, clocks: u32) -> bool {
        let Ok(schema) = Schema::parse(text) else { return false };
        let class = self.intern(&schema, point).filter(|class| class.dense == dense);
        if !point && class.is_some() {
            self.see(dense);
        }
        class.is_some_and(|class| (0..clocks).all(|clock| self.declare(clock, class.dense)))
    }

    /// The schema of a class that has one.
    pub fn text(&self, dense: u32) -> Option<&str> {
        Some(&*self.list.get(dense.checked_sub(id::FIRST)? as usize)?.text)
    }

    /// The name of a class that has a schema.
    fn name(&self, dense: u32) -> Option<&str> {
        self.text(dense)?.split_once('(').map(|(name, _)| name)
    }

    /// A guest has this class.
    pub fn see(&mut self, dense: u32) {
        if let Some(name) = self.name(dense).map(str::to_owned) {
            self.wanted.see(&name);
        }
    }

    /// Whether a guest's events of this class are wanted.
    pub fn is_wanted(&self, dense: u32) -> bool {
        self.name(dense).is_none_or(|name| self.wanted.is_wanted(name))
    }

    /// Sees to it that the stream class of a clock will have this event class
    /// in the metadata. `false`: there is no more room.
    pub fn declare(&mut self, clock: u32, dense: u32) -> bool {
        if dense < id::FIRST {
            return true;
        }
        let clock = clock as usize;
        if self.declared.len() <= clock {
            self.declared.resize_with(clock + 1, Vec::new);
        }
        let bits = &mut self.declared[clock];
        let (word, bit) = (dense as usize / 64, 1 << (dense % 64));
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        if bits[word] & bit == 0 {
            if self.declarations == MAX_DECLARED {
                return false;
            }
            bits[word] |= bit;
            self.declarations += 1;
            self.changed = true;
        }
        true
    }

    /// What the metadata says: reserved classes in every stream class, others
    /// where they were declared.
    pub fn entries(&self, clocks: u32) -> impl Iterator<Item = ClassEntry<'_>> {
        (0..clocks).flat_map(|stream_id| {
            let reserved = self.reserved.iter().zip(0..).filter_map(move |(class, id)| {
                let (_, body) = class.as_ref()?;
                Some(ClassEntry { stream_id, id, body })
            });
            let declared = self.declared.get(stream_id as usize).map_or(&[][..], |bits| bits);
            let own = self.list.iter().zip(id::FIRST..).filter_map(move |(class, dense)| {
                let word = declared.get(dense as usize / 64)?;
                (word >> (dense % 64) & 1 == 1).then_some(ClassEntry {
                    stream_id,
                    id: dense,
                    body: &class.body,
                })
            });
            reserved.chain(own)
        })
    }

    /// What `session.json` says.
    pub fn to_json(&self) -> Vec<EventJson> {
        self.list
            .iter()
            .zip(id::FIRST..)
            .map(|(class, id)| EventJson {
                id,
                schema: class.text.as_ref().into(),
                reference_point: class.reference_point,
            })
            .collect()
    }
}

#[derive(Debug)]
enum Known {
    Schema {
        text: Arc<str>,
        plain: ClassRef,
        reference: Option<ClassRef>,
    },
    /// Two texts, one hash: nobody can tell which of them a record is.
    Ambiguous,
}

/// What the ids of one client mean.
#[derive(Debug, Default)]
pub(crate) struct Table {
    known: HashMap<u32, Known>,
}

impl Table {
    /// With all that the session knows: an id is a text's hash, so the same for
    /// every client.
    pub fn of_all(classes: &Classes) -> Table {
        let mut known = HashMap::new();
        let plain = classes.list.iter().zip(id::FIRST..).filter(|(c, _)| !c.reference_point);
        for (class, dense) in plain.take(MAX_CLIENT_SCHEMAS) {
            let plain = ClassRef { dense, shape: class.shape };
            let schema = Known::Schema { text: Arc::clone(&class.text), plain, reference: None };
            known.insert(id_of(&class.text), schema);
        }
        Table { known }
    }

    /// Takes in a text of the client's schema log. `Some` if it is new.
    pub fn learn(
        &mut self,
        classes: &mut Classes,
        logged: &LoggedSchema,
    ) -> Result<Option<ClassRef>, Fault> {
        let text = std::str::from_utf8(logged.bytes()).map_err(|_| Fault::SchemaText)?;
        let schema = Schema::parse(text).map_err(|_| Fault::SchemaText)?;
        if id_of(text) != logged.id {
            return Err(Fault::SchemaHash);
        }
        let room = self.known.len() < MAX_CLIENT_SCHEMAS;
        match self.known.entry(logged.id) {
            Entry::Occupied(mut entry) => match entry.get() {
                Known::Schema { text: known, .. } if &**known == text => Ok(None),
                _ => {
                    entry.insert(Known::Ambiguous);
                    Err(Fault::SchemaHash)
                }
            },
            Entry::Vacant(entry) => {
                let plain = room
                    .then(|| classes.intern(&schema, false))
                    .flatten()
                    .ok_or(Fault::SchemaTable)?;
                let text = text.into();
                entry.insert(Known::Schema { text, plain, reference: None });
                Ok(Some(plain))
            }
        }
    }

    /// The schema of an id.
    pub fn text(&self, id: u32) -> Option<&str> {
        match self.known.get(&id)? {
            Known::Schema { text, .. } => Some(text),
            Known::Ambiguous => None,
        }
    }

    /// The class of a record in the client's ring.
    pub fn plain(&self, id: u32) -> Option<ClassRef> {
        match self.known.get(&id)? {
            Known::Schema { plain, .. } => Some(*plain),
            Known::Ambiguous => None,
        }
    }

    /// The class of a reference point of this client.
    pub fn reference(&mut self, classes: &mut Classes, id: u32) -> Result<ClassRef, Fault> {
        match self.known.get_mut(&id) {
            Some(Known::Schema { reference: Some(reference), .. }) => Ok(*reference),
            Some(Known::Schema { text, reference, .. }) => {
                // It was parsed when it came.
                let schema = Schema::parse(text).map_err(|_| Fault::SchemaText)?;
                let class = classes.intern(&schema, true).ok_or(Fault::SchemaTable)?;
                *reference = Some(class);
                Ok(class)
            }
            Some(Known::Ambiguous) | None => Err(Fault::UnknownId),
        }
    }

    /// The classes of reference points of all schemas, as far as there is room.
    pub fn references(&mut self, classes: &mut Classes) -> Vec<ClassRef> {
        let ids: Vec<u32> = self.known.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.reference(classes, id).ok()).collect()
    }

    /// Dense ids of all schemas.
    pub fn dense(&self) -> impl Iterator<Item = u32> + '_ {
        self.known.values().filter_map(|known| match known {
            Known::Schema { plain, .. } => Some(plain.dense),
            Known::Ambiguous => None,
        })
    }
}
