// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sorting whose code is compiled once, for places, and not again for each type and order. It takes a few times as long
//! as [`slice::sort_by`], and is for what is sorted once in a run.

use std::cmp::Ordering;

/// Sorts by a key. Equal elements keep their order.
pub(crate) fn by_key<T, K: Ord>(all: &mut [T], mut key: impl FnMut(&T) -> K) {
    by(all, |a, b| key(a).cmp(&key(b)));
}

/// Sorts. Equal elements keep their order.
pub(crate) fn by<T>(all: &mut [T], mut compare: impl FnMut(&T, &T) -> Ordering) {
    let mut places = places(all.len(), &mut |a, b| compare(&all[a], &all[b]));
    // `places[n]` is where the element of place n comes from.
    for place in 0..all.len() {
        let mut at = place;
        loop {
            let from = std::mem::replace(&mut places[at], at);
            if from == place {
                break;
            }
            all.swap(at, from);
            at = from;
        }
    }
}

fn places(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|a, b| compare(*a, *b));
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_sorts_as_the_standard_library(all: Vec<(u8, u32)>) {
            let (mut sorted, mut expected) = (all.clone(), all);

            super::by_key(&mut sorted, |of| of.0);

            expected.sort_by_key(|of| of.0);
            prop_assert_eq!(sorted, expected);
        }
    }
}
