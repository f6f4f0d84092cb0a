// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The times in which clients' clocks jumped.

/// The jumps of clocks.
#[derive(Debug)]
pub(in super::super) struct Jumps {
    /// Jumps in sorted order. Each entry has the clock, the client, and the two times between which the clock
    /// jumped. Clients without a map of their own share one map. The client is `None` if this shared map
    /// jumped.
    all: Vec<((u32, Option<u32>), i64, i64)>,
    /// Clocks that jumped.
    clocks: Vec<u32>,
}

impl Jumps {
    pub fn new(mut all: Vec<((u32, Option<u32>), i64, i64)>) -> Jumps {
        all.sort_by_key(|jump| *jump);
        // The jumps of one clock can overlap. So the end of each jump becomes the latest end of this jump and
        // all jumps before.
        for at in 1..all.len() {
            if all[at].0 == all[at - 1].0 {
                all[at].2 = all[at].2.max(all[at - 1].2);
            }
        }
        let mut clocks = Vec::from_iter(all.iter().map(|((clock, _), ..)| *clock));
        clocks.dedup();
        Jumps { all, clocks }
    }

    /// Returns whether the clock of a client jumped, or may have jumped, between two times. `clock`: the
    /// clock that the client reads, if it is known.
    pub fn has(&self, clock: Option<u32>, client: u32, from: i64, to: i64) -> bool {
        let is_its = |of: &&u32| clock.is_none_or(|clock| clock == **of);
        let clocks = self.clocks.iter().filter(is_its);
        clocks.flat_map(|clock| [(*clock, None), (*clock, Some(client))]).any(|of| {
            let after = self.all.partition_point(|(whose, begin, _)| (*whose, *begin) <= (of, to));
            let last = after.checked_sub(1).map(|last| self.all[last]);
            last.is_some_and(|(whose, _, end)| whose == of && end >= from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Jumps;

    #[test]
    fn a_jump_is_found_by_its_clock_its_client_and_any_time_that_it_has() {
        let jumps = [(Some(2), 10, 90), (Some(2), 20, 30), (Some(7), 5, 6), (None, 200, 201)];
        let mut all = Vec::from(jumps.map(|(client, from, to)| ((1, client), from, to)));
        all.push(((2, None), 100, 120));
        let jumps = Jumps::new(all.clone());
        for (clock, client) in
            [1, 2, 3, 7, 9].into_iter().flat_map(|of| [(Some(1), of), (Some(2), of), (None, of)])
        {
            for from in (0..250).step_by(5) {
                for to in (from..250).step_by(5) {
                    let expected = all.iter().any(|((of_clock, of), begin, end)| {
                        let is_its = clock.is_none_or(|clock| clock == *of_clock)
                            && of.is_none_or(|of| of == client);
                        is_its && *begin <= to && *end >= from
                    });
                    let found = jumps.has(clock, client, from, to);
                    assert_eq!(found, expected, "{clock:?} {client} {from} {to}");
                }
            }
        }
    }
}
