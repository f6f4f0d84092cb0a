// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Collections that take little memory, because a comparison has many runs, each with thousands of names.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Values by name, in the order of names.
#[derive(Clone, Debug, PartialEq)]
pub struct Named<V>(Box<[(Box<str>, V)]>);

impl<V> Named<V> {
    /// Iterates over the names and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }
}

impl<V> Default for Named<V> {
    fn default() -> Self {
        Named(Box::default())
    }
}

impl<V, N: Into<Box<str>>> FromIterator<(N, V)> for Named<V> {
    /// Collects values by name. If a name has several values, then the collection keeps the last value.
    fn from_iter<I: IntoIterator<Item = (N, V)>>(all: I) -> Self {
        let sorted: BTreeMap<Box<str>, V> =
            all.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Named(sorted.into_iter().collect())
    }
}

impl<V: Serialize> Serialize for Named<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Named<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<String, V>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Percentiles. Each percentile is stored as its difference from the previous percentile, with 7 bits per
/// byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Percentiles(Box<[u8]>);

impl Percentiles {
    /// Iterates over the percentiles.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let mut last = 0u64;
        // The last byte of each difference has its upper bit clear.
        self.0.split_inclusive(|byte| byte & 0x80 == 0).map(move |bytes| {
            let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 7 | u64::from(byte & 0x7f));
            last = last.wrapping_add(bits);
            last
        })
    }

    /// Returns the percentile at an index.
    pub fn get(&self, at: usize) -> Option<u64> {
        self.iter().nth(at)
    }
}

impl FromIterator<u64> for Percentiles {
    fn from_iter<I: IntoIterator<Item = u64>>(all: I) -> Self {
        let (mut bytes, mut last) = (Vec::new(), 0u64);
        for value in all {
            // The subtraction wraps, because the percentiles of a damaged file may descend.
            let mut bits = value.wrapping_sub(last);
            last = value;
            // The loop ends after ten turns at most, because each turn removes 7 of 64 bits.
            while bits >= 0x80 {
                bytes.push(bits as u8 | 0x80);
                bits >>= 7;
            }
            bytes.push(bits as u8);
        }
        Percentiles(bytes.into())
    }
}

impl Serialize for Percentiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Percentiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<u64>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_what_they_were_in_any_order() {
        for all in [vec![], vec![0, 0, 7, 127, 128, 300_000, u64::MAX], vec![9, 3, u64::MAX, 0]] {
            let percentiles = Percentiles::from_iter(all.iter().copied());

            assert_eq!(Vec::from_iter(percentiles.iter()), all);
            assert_eq!(percentiles.get(1), all.get(1).copied());
        }
    }

    #[test]
    fn they_and_named_values_have_the_json_of_a_list_and_a_map() {
        let percentiles = Percentiles::from_iter([1, 200]);
        let named = Named::from_iter([("b", 2.0), ("a", 1.0)]);

        let json = serde_json::to_string(&(&percentiles, &named)).unwrap();

        assert_eq!(json, r#"[[1,200],{"a":1.0,"b":2.0}]"#);
        assert_eq!(
            serde_json::from_str::<(Percentiles, Named<f64>)>(&json).unwrap(),
            (percentiles, named)
        );
    }
}
