//! Meanings of the ids in a source's ring.

use super::budget::Payer;
use super::classes::{ClassRef, Classes, Table};
use crate::ctf::Domain;
use hypertrace_abi::record::Header;
use hypertrace_abi::ring::{Fault, LoggedSchema};

/// Slots of the cache of known ids.
pub(crate) const CACHE: usize = 128;

/// Class of an id, for the hot path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cached {
    /// The whole second header word of a plain record of this id, if all of
    /// them have the same length; else 0, which is a pad's.
    pub meta: u64,
    /// The same with the dense id.
    pub out: u64,
    pub id: u32,
    pub class: Option<ClassRef>,
    /// Known, and not wanted.
    pub filtered: bool,
}

impl Cached {
    pub fn new(id: u32, class: ClassRef, wanted: bool) -> Cached {
        // Unwanted events are not for the hot path.
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
    /// The budget that its new names are paid from.
    pub payer: Payer,
    pub table: Table,
    pub cache: Box<[Cached; CACHE]>,
}

impl Texts {
    pub fn new(payer: Payer) -> Texts {
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
            // The cache may have what the id meant so far.
            self.cache[logged.id as usize % CACHE] = Cached::default();
        }
        if let Some(class) = learned?
            && domain == Domain::Guest
        {
            classes.see(class.dense);
        }
        Ok(())
    }

    /// Adds a text that the client had sent to another session. The metadata gets its class
    /// when a record is of it.
    pub fn adopt(&mut self, classes: &mut Classes, text: &str) -> Result<(), Fault> {
        if let Some(class) = self.table.learn_text(self.payer, classes, text)? {
            classes.see(class.dense);
        }
        Ok(())
    }

    /// Empties the cache, after what its ids mean has changed.
    pub fn forget(&mut self) {
        *self.cache = [Cached::default(); CACHE];
    }
}
