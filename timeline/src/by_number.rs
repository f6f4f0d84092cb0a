// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Values by number.

use std::collections::BTreeMap;
use std::vec;

use crate::sort;

/// A number, or several, by which values are found.
pub(crate) trait Number: Copy {
    /// Returns the word that has this number's place in the order.
    fn word(self) -> u64;
}

impl Number for u32 {
    fn word(self) -> u64 {
        self.into()
    }
}

impl Number for (u32, u32) {
    fn word(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.1)
    }
}

impl Number for Option<u32> {
    fn word(self) -> u64 {
        self.map_or(0, |number| u64::from(number) + 1)
    }
}

/// Values by number, in the order of the numbers. Its tree is of places, whatever the values are, so that the tree's code
/// is compiled once.
#[derive(Clone, Debug)]
pub(crate) struct ByNumber<K, V> {
    places: BTreeMap<u64, usize>,
    all: Vec<(K, V)>,
}

impl<K: Number, V> ByNumber<K, V> {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn get(&self, number: K) -> Option<&V> {
        let (_, value) = self.all.get(*self.places.get(&number.word())?)?;
        Some(value)
    }

    /// Gives a number this value.
    pub fn insert(&mut self, number: K, value: V) {
        match self.places.get(&number.word()).and_then(|place| self.all.get_mut(*place)) {
            Some(own) => own.1 = value,
            None => _ = self.get_or_insert_with(number, || value),
        }
    }

    /// Returns the value of a number, and makes it if there is none.
    pub fn get_or_insert_with(&mut self, number: K, make: impl FnOnce() -> V) -> &mut V {
        let next = self.all.len();
        let place = *self.places.entry(number.word()).or_insert(next);
        if place == next {
            self.all.push((number, make()));
        }
        &mut self.all[place].1
    }

    /// Iterates over the numbers and their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> + Clone {
        self.places.values().filter_map(|place| self.all.get(*place)).map(|(k, v)| (*k, v))
    }

    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// Iterates over the numbers and their values, in the order in which they were inserted.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.all.iter_mut().map(|(number, value)| (*number, value))
    }
}

impl<K, V> Default for ByNumber<K, V> {
    fn default() -> Self {
        ByNumber { places: BTreeMap::new(), all: Vec::new() }
    }
}

impl<K: Number, V> FromIterator<(K, V)> for ByNumber<K, V> {
    /// Of several values of a number, the last one stays.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut found = ByNumber::default();
        for (number, value) in all {
            found.insert(number, value);
        }
        found
    }
}

impl<K: Number, V> IntoIterator for ByNumber<K, V> {
    type Item = (K, V);
    type IntoIter = vec::IntoIter<(K, V)>;

    fn into_iter(mut self) -> Self::IntoIter {
        sort::by_key(&mut self.all, |(number, _)| number.word());
        self.all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_as_a_map_of_the_standard_library(all: Vec<(Option<u32>, u8)>, asked: Option<u32>) {
            let expected = BTreeMap::from_iter(all.iter().copied());

            let found = ByNumber::from_iter(all);

            prop_assert_eq!(found.get(asked), expected.get(&asked));
            prop_assert_eq!(found.len(), expected.len());
            prop_assert!(found.values().eq(expected.values()));
            prop_assert!(found.iter().eq(expected.iter().map(|(k, v)| (*k, v))));
            prop_assert!(found.into_iter().eq(expected));
        }
    }
}
