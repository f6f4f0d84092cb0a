// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Value of each name. The key is the address of the name. An address suffices because a session stores each
//! name once, and a search by address is cheap enough for millions of events.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Values of names. If two names have the same text, each name has a value of its own.
#[derive(Debug)]
pub(crate) struct ByName<V>(ByNumber<usize, (Arc<str>, V)>);

impl<V> Default for ByName<V> {
    fn default() -> Self {
        ByName(HashMap::default())
    }
}

impl<V> ByName<V> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn get(&self, name: &Arc<str>) -> Option<&V> {
        self.0.get(&address(name)).map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, name: &Arc<str>) -> Option<&mut V> {
        self.0.get_mut(&address(name)).map(|(_, value)| value)
    }

    /// Sets the value of a name. The name is kept, so that no other name is stored at the same address.
    pub fn insert(&mut self, name: &Arc<str>, value: V) {
        self.0.insert(address(name), (name.clone(), value));
    }
}

/// Returns the address of a name.
pub(crate) fn address(name: &Arc<str>) -> usize {
    Arc::as_ptr(name).cast::<u8>() as usize
}

/// Map whose keys are addresses or client ids. No attacker can choose many of these keys, so a weak hash is
/// safe.
pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<Multiply>>;

/// Hash of a number, for [`ByNumber`].
#[derive(Debug, Default)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
