//! The budget of descriptions: how many bytes of `session.json` and of the
//! metadata guests and the host can cause, and how often these files may be
//! replaced.
//!
//! A guest pays with its own texts for the size of the files, and each new text
//! asks for the files to be replaced. Without a bound on both, one client could
//! keep the drain loop busy with files that grow, and leave no room for the
//! events of others. So the guests share a pool, every client has a reserve that
//! no other can use up, the host has a pool of its own; and the files are
//! replaced at a bounded rate of bytes.

use hypertrace_format::limits::{
    ACCOUNT_BYTES_PER_SECOND, BYTES_PER_SECOND, CLIENT_BYTES, GUESTS_BYTES, HOST_BYTES,
};

/// The party whose record needs a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payer {
    /// The VMM.
    Host,
    /// A source that a guest or a program fills, by the number of its
    /// [`Stats`](super::stats::Stats).
    Source(usize),
    /// An earlier process, which has paid.
    Earlier,
}

/// Bytes that are left.
#[derive(Debug)]
pub(crate) struct Budget {
    host: usize,
    guests: usize,
    /// By source.
    reserves: Vec<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { host: HOST_BYTES, guests: GUESTS_BYTES, reserves: Vec::new() }
    }
}

impl Budget {
    /// Draws these bytes from the payer's budget, from its reserve last.
    /// `false`: there are not as many, and nothing was drawn.
    pub fn pay(&mut self, payer: Payer, bytes: usize) -> bool {
        let draw = |from: &mut usize| from.checked_sub(bytes).map(|left| *from = left).is_some();
        match payer {
            Payer::Earlier => {
                self.guests = self.guests.saturating_sub(bytes);
                true
            }
            Payer::Host => draw(&mut self.host),
            Payer::Source(source) => {
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

/// When `session.json` and the metadata are replaced: for guests that bring something
/// new, by a token bucket that holds what a second brings; for the accounts, once a second
/// or less often.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes that may be written now.
    credit: u64,
    /// When the credit was counted last, host's raw counter.
    counted_at: u64,
    /// Bytes that were written the last time.
    size: u64,
    /// When `session.json` was last replaced for its accounts, host's raw counter.
    accounts_at: u64,
    /// Bytes that this took.
    pub accounts_bytes: u64,
}

impl Pace {
    /// Returns a full bucket.
    pub fn new(now: u64) -> Pace {
        let credit = BYTES_PER_SECOND;
        Pace { credit, counted_at: now, size: 0, accounts_at: now, accounts_bytes: 0 }
    }

    /// Returns whether the files may be replaced now. `frequency`: ticks per second.
    pub fn allows(&mut self, now: u64, frequency: u64) -> bool {
        let elapsed = now.saturating_sub(self.counted_at).min(frequency);
        let gained =
            u128::from(elapsed) * u128::from(BYTES_PER_SECOND) / u128::from(frequency.max(1));
        // Ticks that gain no whole byte count later.
        if gained > 0 {
            self.credit = self.credit.saturating_add(gained as u64).min(BYTES_PER_SECOND);
            self.counted_at = now;
        }
        self.credit >= self.size.min(BYTES_PER_SECOND)
    }

    /// Counts the bytes of a replacement.
    pub fn spend(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes);
        self.size = bytes;
    }

    /// Returns whether the accounts are due, and notes that they are written now: once a
    /// second, or as often as [`ACCOUNT_BYTES_PER_SECOND`] allows.
    pub fn begins_accounts(&mut self, now: u64, frequency: u64) -> bool {
        let seconds = self.accounts_bytes.div_ceil(ACCOUNT_BYTES_PER_SECOND).max(1);
        let is_due = now.saturating_sub(self.accounts_at) > frequency.saturating_mul(seconds);
        if is_due {
            self.accounts_at = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_keeps_its_reserve_when_others_use_up_the_pool() {
        let mut budget = Budget::default();
        while budget.pay(Payer::Source(0), 1000) {}
        let mut paid = 0;
        while budget.pay(Payer::Source(7), 1000) {
            paid += 1000;
        }
        assert_eq!(paid, (16 << 10) / 1000 * 1000);
        assert!(!budget.pay(Payer::Source(0), 1000));
    }

    #[test]
    fn guests_do_not_use_the_hosts_budget() {
        let mut budget = Budget::default();
        for source in 0..100 {
            while budget.pay(Payer::Source(source), 100) {}
        }
        let mut paid = 0;
        while budget.pay(Payer::Host, 1 << 10) {
            paid += 1 << 10;
        }
        assert_eq!(paid, 8 << 20);
    }

    #[test]
    fn files_of_a_size_are_replaced_as_often_as_the_rate_allows() {
        const HZ: u64 = 1_000_000_000;
        let mut pace = Pace::new(0);
        let mut written = 0u64;
        for now in (0..10 * HZ).step_by(HZ as usize / 1000) {
            if pace.allows(now, HZ) {
                pace.spend(1 << 20);
                written += 1 << 20;
            }
        }
        let most = 11 * BYTES_PER_SECOND;
        assert!((most - (2 << 20)..=most).contains(&written), "{written}");
    }
}
