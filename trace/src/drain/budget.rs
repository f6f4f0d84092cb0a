//! The budget of descriptions. The budget limits the number of bytes that descriptions of guests and of the
//! host take in `classes.jsonl` and in the metadata. The budget also limits how often files are replaced.
//!
//! Each new text of a guest is appended to `classes.jsonl` and to the metadata. Without a bound, one client
//! could fill the disk with its texts, and leave no room for the events of other clients. So the guests share
//! a pool, every client has a reserve that no other client can use up, and the host has a separate pool.

use hypertrace_format::limits::{ACCOUNT_BYTES_PER_SECOND, CLIENT_BYTES, GUESTS_BYTES, HOST_BYTES};

/// The party whose record needs a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// The VMM.
    Host,
    /// Index of the [`Stats`](super::stats::Stats) of a source that a guest or a program fills.
    Source(usize),
    /// A session that a killed process left. This session has already paid for its descriptions.
    Recovered,
}

/// Number of bytes left in each account.
#[derive(Debug)]
pub(crate) struct Budget {
    host: usize,
    guests: usize,
    /// Reserve of each source.
    reserves: Vec<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { host: HOST_BYTES, guests: GUESTS_BYTES, reserves: Vec::new() }
    }
}

impl Budget {
    /// Draws these bytes from the payer's budget. A client's reserve is used only if the pool has too few
    /// bytes. If the budget has too few bytes left, the call draws no bytes and returns `false`.
    pub fn charge(&mut self, payer: Account, bytes: usize) -> bool {
        let draw = |from: &mut usize| from.checked_sub(bytes).map(|left| *from = left).is_some();
        match payer {
            Account::Recovered => {
                self.guests = self.guests.saturating_sub(bytes);
                true
            }
            Account::Host => draw(&mut self.host),
            Account::Source(source) => {
                draw(&mut self.guests) || {
                    if self.reserves.len() <= source {
                        self.reserves.resize(source + 1, CLIENT_BYTES);
                    }
                    draw(&mut self.reserves[source])
                }
            }
        }
    }
}

/// The times at which files are replaced. `session.json` is replaced once a second or less often, to keep its
/// accounts up to date. If the maps of clocks change, the metadata is replaced together with `session.json`.
/// Each wait until the next replacement of the metadata is twice the previous wait.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Ticks of the host's raw counter when the accounts were last written.
    accounts_at: u64,
    /// Number of bytes that the last accounts took.
    pub bytes: u64,
    /// Ticks of the host's raw counter when the maps were last written. The maps may be written again
    /// `maps_seconds` seconds later.
    maps_at: u64,
    maps_seconds: u64,
}

impl Pace {
    pub fn new(now: u64) -> Pace {
        Pace { accounts_at: now, bytes: 0, maps_at: now, maps_seconds: 1 }
    }

    /// Returns true if the accounts are due. In this case, notes that the accounts are written now. Accounts
    /// are due once a second, or less often if [`ACCOUNT_BYTES_PER_SECOND`] requires so. `frequency` is in
    /// ticks per second.
    pub fn begins_accounts(&mut self, now: u64, frequency: u64) -> bool {
        let is_due = self.ticks_to_accounts(now, frequency) == 0;
        if is_due {
            self.accounts_at = now;
        }
        is_due
    }

    /// Returns the ticks until the accounts are due.
    pub fn ticks_to_accounts(&self, now: u64, frequency: u64) -> u64 {
        let seconds = self.bytes.div_ceil(ACCOUNT_BYTES_PER_SECOND).max(1);
        let due = self.accounts_at.saturating_add(frequency.saturating_mul(seconds));
        due.saturating_add(1).saturating_sub(now)
    }

    /// Returns true if changed maps are due. In this case, notes that the maps are written now.
    pub fn begins_maps(&mut self, now: u64, frequency: u64) -> bool {
        let wait = frequency.saturating_mul(self.maps_seconds);
        let is_due = now.saturating_sub(self.maps_at) >= wait;
        if is_due {
            (self.maps_at, self.maps_seconds) = (now, self.maps_seconds.saturating_mul(2));
        }
        is_due
    }

    /// Notes a new clock. The first map of a clock is rough, so a better map may be written after a second.
    pub fn clock_added(&mut self, now: u64) {
        (self.maps_at, self.maps_seconds) = (now, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_keeps_its_reserve_when_others_use_up_the_pool() {
        let mut budget = Budget::default();
        while budget.charge(Account::Source(0), 1000) {}
        let mut paid = 0;
        while budget.charge(Account::Source(7), 1000) {
            paid += 1000;
        }
        assert_eq!(paid, (16 << 10) / 1000 * 1000);
        assert!(!budget.charge(Account::Source(0), 1000));
    }

    #[test]
    fn guests_do_not_use_the_hosts_budget() {
        let mut budget = Budget::default();
        for source in 0..100 {
            while budget.charge(Account::Source(source), 100) {}
        }
        let mut paid = 0;
        while budget.charge(Account::Host, 1 << 10) {
            paid += 1 << 10;
        }
        assert_eq!(paid, 8 << 20);
    }

    #[test]
    fn maps_are_written_after_twice_as_long_each_time_until_there_is_a_new_clock() {
        const HZ: u64 = 1_000_000_000;
        let mut pace = Pace::new(0);
        let mut written = |seconds: std::ops::Range<u64>| -> Vec<u64> {
            seconds.filter(|second| pace.begins_maps(second * HZ, HZ)).collect()
        };
        assert_eq!(written(0..100), [1, 3, 7, 15, 31, 63]);
        pace.clock_added(100 * HZ);
        assert!(pace.begins_maps(101 * HZ, HZ) && !pace.begins_maps(102 * HZ, HZ));
    }
}
