//! Event classes. The tables of this module map the ids of each source to the session's dense ids.
//!
//! A guest's id is a hash, and the guest may send a false hash. But a reader of the trace relies on declared
//! ids and correct lengths. So the drain looks up each id only among the texts of the client that sent the
//! id. The drain itself has computed the hashes of these texts. Each text gets one dense id for the whole
//! session, and a second dense id for the reference points with this text. All tables are bounded, because
//! guests fill the tables. A [`Budget`] limits how many bytes the descriptions of classes and declarations
//! take on disk. New classes and declarations are appended to the files before the next packet.

use super::budget::{Account, Budget};
use super::wanted::Wanted;
use crate::ctf::Domain;
use crate::ctf::metadata::{ClassEntry, class_body};
use hypertrace_abi::record::{Header, RESERVED, id};
use hypertrace_abi::ring::{Fault, LoggedSchema};
use hypertrace_abi::schema::{Schema, Shape, id_of};
use hypertrace_format::limits::{CLASS_BYTES, MAX_CLIENT_SCHEMAS};
use hypertrace_format::session_json::EventJson;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

/// The class of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassRef {
    pub dense: u32,
    pub shape: Shape,
}

#[derive(Debug)]
struct Class {
    text: Arc<str>,
    /// Body of the class in the metadata.
    body: Box<str>,
    shape: Shape,
    reference_point: bool,
}

/// All event classes of a session.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    /// Dense id = [`id::FIRST`] + index.
    list: Vec<Class>,
    by_text: [HashMap<Arc<str>, u32>; 2],
    reserved: [Option<(Shape, Box<str>)>; id::FIRST as usize],
    /// Number of classes that the session of a killed process had.
    earlier: usize,
    /// Number of classes that `classes.jsonl` has.
    listed: usize,
    /// For each clock, the classes in its stream class.
    declared: Vec<BitSet>,
    /// The declared classes that the metadata does not have yet. Each entry has the clock and the dense id.
    undescribed: Vec<(u32, u32)>,
    /// Bytes of description that guests and the host may still add.
    budget: Budget,
    /// Rules for which of the guests' events are wanted.
    pub wanted: Wanted,
}

/// A set of dense ids, with one bit for each id.
#[derive(Clone, Debug, Default)]
struct BitSet(Vec<u64>);

impl BitSet {
    fn has(&self, dense: u32) -> bool {
        self.0.get(dense as usize / 64).is_some_and(|word| word >> (dense % 64) & 1 == 1)
    }

    fn insert(&mut self, dense: u32) {
        let word = dense as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (dense % 64);
    }

    /// Returns the members in order.
    fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().zip((0..).step_by(64)).flat_map(|(word, first)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(first + bit)
            })
        })
    }
}

/// Size in bytes of the text that stands around a class's body in the metadata.
const DECLARATION_BYTES: usize = 64;

impl Classes {
    pub fn new() -> Classes {
        let mut classes = Classes::default();
        for (id, text) in RESERVED {
            if let Ok(schema) = Schema::parse(text) {
                let body = class_body(&schema, false).into();
                classes.reserved[id as usize] = Some((schema.shape(), body));
                // These two classes are also declared for reference points now, because the tables may be
                // full later.
                if matches!(id, id::HYPERTRACE | id::UNTYPED)
                    && let Some(class) = classes.intern(Account::Host, &schema, true)
                {
                    classes.declare(Account::Host, 0, class.dense);
                }
            }
        }
        classes
    }

    /// Returns the class of a reserved id that a producer may write.
    pub fn reserved(&self, id: u32) -> Option<ClassRef> {
        let written = matches!(id, id::LEASE | id::HYPERTRACE);
        let (shape, _) = self.reserved.get(id as usize)?.as_ref().filter(|_| written)?;
        Some(ClassRef { dense: id, shape: *shape })
    }

    /// Returns the class of reference points of a reserved id.
    pub fn reserved_reference(&self, id: u32) -> Option<ClassRef> {
        let (_, text) = RESERVED.iter().find(|(reserved, _)| *reserved == id)?;
        self.find(text, true)
    }

    fn find(&self, text: &str, reference_point: bool) -> Option<ClassRef> {
        let dense = *self.by_text[usize::from(reference_point)].get(text)?;
        let shape = self.list.get((dense - id::FIRST) as usize)?.shape;
        Some(ClassRef { dense, shape })
    }

    /// Returns the class of a text. If the text has no class yet, makes a new class. Returns `None` if the
    /// payer's budget has no room for a new class.
    fn intern(
        &mut self,
        payer: Account,
        schema: &Schema<'_>,
        reference_point: bool,
    ) -> Option<ClassRef> {
        let (text, shape) = (schema.text(), schema.shape());
        if let Some(found) = self.find(text, reference_point) {
            return Some(found);
        }
        if !self.budget.charge(payer, text.len() + CLASS_BYTES) {
            return None;
        }
        let text: Arc<str> = match self.by_text[usize::from(!reference_point)].get_key_value(text) {
            Some((text, _)) => Arc::clone(text),
            None => text.into(),
        };
        let dense = id::FIRST + self.list.len() as u32;
        let body = class_body(schema, reference_point).into();
        self.list.push(Class { text: Arc::clone(&text), body, shape, reference_point });
        self.by_text[usize::from(reference_point)].insert(text, dense);
        Some(ClassRef { dense, shape })
    }

    /// Returns the classes of a session that a killed process left. The classes keep their numbers. Returns
    /// `None` if a class would get another number.
    pub fn recovered(events: &[EventJson]) -> Option<Classes> {
        let mut classes = Classes::new();
        for event in events {
            let schema = Schema::parse(&event.schema).ok()?;
            let class = classes.intern(Account::Recovered, &schema, event.reference_point)?;
            if class.dense != event.id {
                return None;
            }
            if !event.reference_point {
                classes.see(event.id);
            }
        }
        classes.earlier = classes.list.len();
        Some(classes)
    }

    /// Returns the classes of all ids, for the clients of a killed process. An id is the hash of a text.
    pub fn by_id(&self) -> RecoveredClasses {
        let mut all = RecoveredClasses::new();
        for (class, dense) in self.list.iter().zip(id::FIRST..).filter(|(c, _)| !c.reference_point)
        {
            let found = ClassRef { dense, shape: class.shape };
            all.entry(id_of(&class.text)).and_modify(|found| *found = None).or_insert(Some(found));
        }
        all
    }

    /// Returns the schema of a class, if the class has a schema.
    pub fn text(&self, dense: u32) -> Option<&str> {
        Some(&*self.list.get(dense.checked_sub(id::FIRST)? as usize)?.text)
    }

    fn arc(&self, dense: u32) -> Option<Arc<str>> {
        Some(Arc::clone(&self.list.get(dense.checked_sub(id::FIRST)? as usize)?.text))
    }

    /// Returns the name of a class that has a schema.
    fn name(&self, dense: u32) -> Option<&str> {
        self.text(dense)?.split_once('(').map(|(name, _)| name)
    }

    /// Notes that a guest has events of this class.
    pub fn see(&mut self, dense: u32) {
        if let Some(name) = self.name(dense).map(str::to_owned) {
            self.wanted.see(&name);
        }
    }

    /// Returns true if the rules want a guest's events of this class.
    pub fn is_wanted(&self, dense: u32) -> bool {
        self.name(dense).is_none_or(|name| self.wanted.is_wanted(name))
    }

    /// Adds this event class to the stream class of a clock, so that the files have it before the next
    /// packet. Returns `false` if the payer's budget has no room for the declaration.
    pub fn declare(&mut self, payer: Account, clock: u32, dense: u32) -> bool {
        let Some(class) = dense.checked_sub(id::FIRST) else { return true };
        let at = clock as usize;
        if self.declared.get(at).is_some_and(|set| set.has(dense)) {
            return true;
        }
        let body = self.list.get(class as usize).map_or(0, |class| class.body.len());
        // The earlier session paid for the first declaration of its classes.
        let was_paid = (class as usize) < self.earlier
            && !self.declared.iter().any(|declared| declared.has(dense));
        let payer = if was_paid { Account::Recovered } else { payer };
        if !self.budget.charge(payer, body + DECLARATION_BYTES) {
            return false;
        }
        if self.declared.len() <= at {
            self.declared.resize_with(at + 1, BitSet::default);
        }
        self.declared[at].insert(dense);
        self.undescribed.push((clock, dense));
        true
    }

    /// Returns true if the files on disk have all classes and declarations.
    #[inline]
    pub fn is_described(&self) -> bool {
        self.listed == self.list.len() && self.undescribed.is_empty()
    }

    /// Returns the classes that `classes.jsonl` does not have.
    pub fn unlisted(&self) -> impl Iterator<Item = EventJson> {
        self.list.iter().zip(id::FIRST..).skip(self.listed).map(|(class, id)| EventJson {
            id,
            schema: class.text.as_ref().into(),
            reference_point: class.reference_point,
        })
    }

    /// Notes that `classes.jsonl` has all classes if `all` is true, and no class if `all` is false.
    pub fn listed(&mut self, all: bool) {
        self.listed = if all { self.list.len() } else { 0 };
    }

    /// Notes that the metadata has all declarations.
    pub fn described(&mut self) {
        self.undescribed.clear();
    }

    /// Returns all event classes of the metadata. Every stream class contains the reserved event classes and
    /// the event classes that were declared for this stream class.
    pub fn entries(&self, clocks: u32) -> impl Iterator<Item = ClassEntry<'_>> {
        // The function walks the declared sets. A test of every class for every clock would take too long,
        // because a session can have many classes and many clocks.
        let declared = (0..clocks).zip(&self.declared);
        let declared =
            declared.flat_map(|(clock, set)| set.iter().map(move |dense| (clock, dense)));
        self.reserved_entries(0..clocks).chain(self.entries_of(declared))
    }

    /// Returns the event classes that the metadata lacks: the new declarations, and the reserved classes for
    /// each stream class of `clocks`.
    pub fn new_entries(&self, clocks: Range<u32>) -> impl Iterator<Item = ClassEntry<'_>> {
        self.reserved_entries(clocks).chain(self.entries_of(self.undescribed.iter().copied()))
    }

    fn reserved_entries(&self, clocks: Range<u32>) -> impl Iterator<Item = ClassEntry<'_>> {
        clocks.flat_map(|stream_id| {
            self.reserved.iter().zip(0..).filter_map(move |(class, id)| {
                let (_, body) = class.as_ref()?;
                Some(ClassEntry { stream_id, id, body })
            })
        })
    }

    fn entries_of(
        &self,
        declared: impl Iterator<Item = (u32, u32)>,
    ) -> impl Iterator<Item = ClassEntry<'_>> {
        declared.filter_map(|(stream_id, dense)| {
            let class = self.list.get(dense.checked_sub(id::FIRST)? as usize)?;
            Some(ClassEntry { stream_id, id: dense, body: &class.body })
        })
    }
}

#[derive(Debug)]
enum Known {
    Schema {
        plain: ClassRef,
        reference: Option<ClassRef>,
    },
    /// Two texts have the same hash, so nobody knows which of the two classes a record has.
    Ambiguous,
}

/// Classes of the ids of all clients of a killed process. If two texts have the same id, the class is `None`.
pub(crate) type RecoveredClasses = HashMap<u32, Option<ClassRef>>;

/// Meanings of the ids of one client.
#[derive(Debug, Default)]
pub(crate) struct Table {
    known: HashMap<u32, Known>,
    /// Classes by id from the session of the killed process. The table uses these classes for ids that no
    /// text of the client has.
    earlier: Arc<RecoveredClasses>,
}

impl Table {
    /// Returns a table of a client of a killed process. The killed process may have read texts of this
    /// client, and these texts are among `earlier`.
    pub fn recovered(earlier: Arc<RecoveredClasses>) -> Table {
        Table { known: HashMap::new(), earlier }
    }

    /// Adds a text of the client's schema log. Returns the text's class if the text is new.
    pub fn learn(
        &mut self,
        payer: Account,
        classes: &mut Classes,
        logged: &LoggedSchema,
    ) -> Result<Option<ClassRef>, Fault> {
        let text = std::str::from_utf8(logged.bytes()).map_err(|_| Fault::SchemaText)?;
        if id_of(text) != logged.id {
            Schema::parse(text).map_err(|_| Fault::SchemaText)?;
            return Err(Fault::SchemaHash);
        }
        self.learn_text(payer, classes, text)
    }

    /// Adds a text of the client. Returns the text's class if the text is new.
    pub fn learn_text(
        &mut self,
        payer: Account,
        classes: &mut Classes,
        text: &str,
    ) -> Result<Option<ClassRef>, Fault> {
        if let Some(Known::Schema { plain, .. }) = self.known.get(&id_of(text))
            && classes.text(plain.dense) == Some(text)
        {
            return Ok(None);
        }
        let schema = Schema::parse(text).map_err(|_| Fault::SchemaText)?;
        let room = self.known.len() < MAX_CLIENT_SCHEMAS;
        match self.known.entry(id_of(text)) {
            Entry::Occupied(mut entry) => {
                entry.insert(Known::Ambiguous);
                Err(Fault::SchemaHash)
            }
            Entry::Vacant(entry) => {
                let plain = room
                    .then(|| classes.intern(payer, &schema, false))
                    .flatten()
                    .ok_or(Fault::SchemaTable)?;
                entry.insert(Known::Schema { plain, reference: None });
                Ok(Some(plain))
            }
        }
    }

    /// Returns all texts of the client, in the order of their classes.
    pub fn texts<'c>(&self, classes: &'c Classes) -> Vec<&'c str> {
        let plain = |known: &Known| match known {
            Known::Schema { plain, .. } => Some(plain.dense),
            Known::Ambiguous => None,
        };
        let mut all: Vec<_> = self.known.values().filter_map(plain).collect();
        all.sort_unstable();
        all.into_iter().filter_map(|dense| classes.text(dense)).collect()
    }

    /// Returns the schema of an id.
    pub fn text<'c>(&self, classes: &'c Classes, id: u32) -> Option<&'c str> {
        classes.text(self.plain(id)?.dense)
    }

    /// Returns the class of a record in the client's ring.
    pub fn plain(&self, id: u32) -> Option<ClassRef> {
        match self.known.get(&id) {
            Some(Known::Schema { plain, .. }) => Some(*plain),
            Some(Known::Ambiguous) => None,
            None => *self.earlier.get(&id)?,
        }
    }

    /// Returns the class of a reference point of this client.
    pub fn reference(
        &mut self,
        payer: Account,
        classes: &mut Classes,
        id: u32,
    ) -> Result<ClassRef, Fault> {
        if let Some(Some(plain)) = self.earlier.get(&id) {
            self.known.entry(id).or_insert(Known::Schema { plain: *plain, reference: None });
        }
        match self.known.get_mut(&id) {
            Some(Known::Schema { reference: Some(reference), .. }) => Ok(*reference),
            Some(Known::Schema { plain, reference }) => {
                let text = classes.arc(plain.dense).ok_or(Fault::UnknownId)?;
                // The parser accepts this text, because the text was parsed when it came.
                let schema = Schema::parse(&text).map_err(|_| Fault::SchemaText)?;
                let class = classes.intern(payer, &schema, true).ok_or(Fault::SchemaTable)?;
                *reference = Some(class);
                Ok(class)
            }
            Some(Known::Ambiguous) | None => Err(Fault::UnknownId),
        }
    }
}

/// Number of slots in the cache of known ids.
pub(crate) const CACHE: usize = 128;

/// Class of an id, for the hot path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cached {
    /// The second header word of all plain records of this id, if these records all have the same length.
    /// Otherwise 0, which is the second header word of a pad.
    pub meta: u64,
    /// The header word `meta`, but with the dense id in place of the guest's id.
    pub out: u64,
    pub id: u32,
    pub class: Option<ClassRef>,
    /// True if the id is known, but events of this id are not wanted.
    pub filtered: bool,
}

impl Cached {
    pub fn new(id: u32, class: ClassRef, wanted: bool) -> Cached {
        // Unwanted events must not take the hot path, because the hot path cannot drop an event.
        let words = class.shape.fixed_words().filter(|_| wanted);
        Cached {
            meta: words.map_or(0, |words| Header::meta(id, words, 0)),
            out: words.map_or(0, |words| Header::meta(class.dense, words, 0)),
            id,
            class: Some(class),
            filtered: !wanted,
        }
    }
}

/// The classes of a source's ids.
#[derive(Debug)]
pub(crate) struct Texts {
    /// The account that pays for the source's new names.
    pub payer: Account,
    pub table: Table,
    pub cache: Box<[Cached; CACHE]>,
}

impl Texts {
    pub fn new(payer: Account) -> Texts {
        let cache = Box::new([Cached::default(); CACHE]);
        Texts { payer, table: Table::default(), cache }
    }

    /// Adds a text of the source's schema log.
    pub fn learn(
        &mut self,
        domain: Domain,
        classes: &mut Classes,
        logged: &LoggedSchema,
    ) -> Result<(), Fault> {
        let learned = self.table.learn(self.payer, classes, logged);
        if matches!(learned, Err(Fault::SchemaHash)) {
            // The id is now ambiguous, but the cache may still hold the id's old class.
            self.cache[logged.id as usize % CACHE] = Cached::default();
        }
        if let Some(class) = learned?
            && domain == Domain::Guest
        {
            classes.see(class.dense);
        }
        Ok(())
    }

    /// Adds a text that the client has sent to an earlier session. The metadata gets the text's class at the
    /// first record of that class.
    pub fn adopt(&mut self, classes: &mut Classes, text: &str) -> Result<(), Fault> {
        if let Some(class) = self.table.learn_text(self.payer, classes, text)? {
            classes.see(class.dense);
        }
        Ok(())
    }

    /// Empties the cache, after its ids have changed their meanings.
    pub fn forget(&mut self) {
        *self.cache = [Cached::default(); CACHE];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lists_its_members() {
        let mut set = BitSet::default();
        let members = [0, 1, 16, 63, 64, 127, 128, 4000, 4095];
        members.into_iter().for_each(|dense| set.insert(dense));
        assert!(set.iter().eq(members));
        assert!(set.iter().all(|dense| set.has(dense)));
    }
}
