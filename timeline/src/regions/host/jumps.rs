// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The times in which clients' clocks jumped.

/// The jumps of clocks.
#[derive(Debug)]
pub(in super::super) struct Jumps {
    /// The client, `None` if it is the clock of all, and the times between which it jumped. Sorted.
    all: Vec<(Option<u32>, i64, i64)>,
}

impl Jumps {
    pub fn new(mut all: Vec<(Option<u32>, i64, i64)>) -> Jumps {
        all.sort_by_key(|jump| *jump);
        // Those of one clock can overlap: each then also has the time of those before it.
        for at in 1..all.len() {
            if all[at].0 == all[at - 1].0 {
                all[at].2 = all[at].2.max(all[at - 1].2);
            }
        }
        Jumps { all }
    }

    /// Returns whether the clock of a client jumped, or may have, in a time.
    pub fn has(&self, client: u32, from: i64, to: i64) -> bool {
        [None, Some(client)].iter().any(|of| {
            let after = self.all.partition_point(|(whose, begin, _)| (whose, begin) <= (of, &to));
            let last = after.checked_sub(1).map(|last| self.all[last]);
            last.is_some_and(|(whose, _, end)| whose == *of && end >= from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Jumps;

    #[test]
    fn a_jump_is_found_by_its_client_and_any_time_that_it_has() {
        let all = vec![(Some(2), 10, 90), (Some(2), 20, 30), (Some(7), 5, 6), (None, 200, 201)];
        let jumps = Jumps::new(all.clone());
        for client in [1, 2, 3, 7, 9] {
            for from in (0..250).step_by(5) {
                for to in (from..250).step_by(5) {
                    let expected = all.iter().any(|(of, begin, end)| {
                        of.is_none_or(|of| of == client) && *begin <= to && *end >= from
                    });
                    assert_eq!(jumps.has(client, from, to), expected, "{client} {from} {to}");
                }
            }
        }
    }
}
