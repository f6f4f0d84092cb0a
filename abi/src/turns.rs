//! Turns: how a drain loop shares its time between clients.
//!
//! A pass gives each client that has something a share of time, in ticks of the
//! raw counter; bytes or packets would not do, as a client chooses what they
//! cost. Each has an account of the time that was spent on it, and nobody gets
//! more than a share ahead of the one that waits with the least: a client whose
//! step took longer than its share, as a step cannot be divided, waits until the
//! others have had as much. Short steps come first, so that who wants little
//! need not wait for all who want much. What nobody else wants is for whoever
//! wants it.

use crate::ring::Consumer;
use crate::sink::{Drained, EventSink};
use core::time::Duration;

/// When and how much to drain.
#[derive(Clone, Copy, Debug)]
pub struct DrainPolicy {
    /// Time between passes that nobody asked for.
    pub period: Duration,
    /// Drain time of one client in one pass, while others have something as well.
    pub budget: Duration,
}

impl Default for DrainPolicy {
    fn default() -> Self {
        // A ring of 1 MiB holds 32,768 short records: at a million a second
        // it is full after 32 ms.
        // 250 us are a few packets, so a pass over 16 clients that all have more
        // than that comes back after 4 ms.
        DrainPolicy { period: Duration::from_millis(1), budget: Duration::from_micros(250) }
    }
}

/// Runs one pass of a drain loop over all clients: `drain`, between the calls by
/// which the sink learns of its begin and its end.
pub fn pass<R>(sink: &(impl EventSink + ?Sized), drain: impl FnOnce() -> R) -> R {
    sink.begin_pass();
    let drained = drain();
    sink.end_pass();
    drained
}

/// Shares that one client's steps can put it behind the others, at most: a loop
/// that was kept off its CPU in the middle of a step must not punish the client
/// for long. Also the shares that one round lasts.
const MOST_SHARES: u64 = 16;

/// Account of the time that was spent on one client.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    client: u32,
    /// Ticks, on a scale of all accounts.
    spent: u64,
    /// How long a step takes: the last one, or most of a longer one before.
    step: u64,
    /// There was more to take at its last turn.
    waits: bool,
}

impl Account {
    /// The account of a client that nothing was spent on.
    pub const fn new(client: u32) -> Account {
        Account { client, spent: 0, step: 0, waits: false }
    }
}

/// A client's turn in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Time: take something.
    Take,
    /// No time: look whether there is something.
    Look,
}

impl Turn {
    /// Lets the sink do what the turn allows, once.
    pub fn drain(
        self,
        sink: &(impl EventSink + ?Sized),
        client: u32,
        consumer: &mut Consumer<'_>,
    ) -> Drained {
        match self {
            Turn::Take => sink.drain(client, consumer),
            Turn::Look => {
                let more = consumer.has_more();
                consumer.pause();
                sink.drain(client, consumer);
                Drained { words: 0, more }
            }
        }
    }
}

/// Lets the sink take all that a client has now. Ends when the sink cannot go
/// on, and in any case when it has taken as much as ring and schema log hold.
pub fn drain_rest(sink: &(impl EventSink + ?Sized), client: u32, consumer: &mut Consumer<'_>) {
    consumer.up_to(consumer.head());
    // Bound: no client has more, whatever it says. The first step of a ring that
    // was overwritten skips what is gone, and is counted as all that there is.
    let most = consumer.most_words();
    let mut room = 2 * most;
    while room > 0 {
        let drained = sink.drain(client, consumer);
        room = room.saturating_sub(drained.words.clamp(1, most));
        if !drained.more {
            break;
        }
    }
}

/// Counts what is left in a client's ring as lost, after the last pass: the sink
/// could not take it. `stage` as for [`Consumer::pull`].
pub fn forsake(
    sink: &(impl EventSink + ?Sized),
    client: u32,
    consumer: &mut Consumer<'_>,
    stage: &mut [u64],
) {
    consumer.forsake(stage);
    // Nothing to take: the sink looks at the losses.
    sink.drain(client, consumer);
}

/// The scale of a group of accounts that share a loop's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    /// The least that was spent on a client that waits.
    floor: u64,
    /// When the last round ended.
    ended: u64,
}

impl Turns {
    /// Gives each account a turn, with `step` as often as its `share` of ticks
    /// allows; others a look. Returns whether some client has more.
    ///
    /// A round ends after 16 shares and a step: who is left then comes first in
    /// the next one. `now` is the raw counter.
    pub fn round(
        &mut self,
        accounts: &mut [Account],
        share: u64,
        now: impl Fn() -> u64,
        mut step: impl FnMut(u32, Turn) -> Drained,
    ) -> bool {
        let (share, begin) = (share.max(1), now());
        let most = share.saturating_mul(MOST_SHARES);
        self.floor = match accounts.iter().filter(|a| a.waits).map(|a| a.spent).min() {
            Some(least) => self.floor.max(least),
            // No client waited: the idle time counts as spent on each of them.
            None => self.floor.saturating_add(begin.saturating_sub(self.ended)),
        };
        let until = self.floor.saturating_add(share);
        // By when the next step would end. Before accounts are brought up to the
        // floor, so that who spends less than its share stays before others.
        accounts.sort_unstable_by_key(|a| (a.spent.saturating_add(a.step), a.client));
        let (mut last, mut more) = (begin, false);
        for account in accounts {
            let Account { client, spent, step: usual, waits } = account;
            *spent = (*spent).clamp(self.floor, self.floor.saturating_add(most));
            let turn = match *spent < until && last.saturating_sub(begin) < most {
                true => Turn::Take,
                false => Turn::Look,
            };
            loop {
                let drained = step(*client, turn);
                let end = now();
                let ticks = end.saturating_sub(last);
                *spent = spent.saturating_add(ticks);
                if turn == Turn::Take {
                    *usual = ticks.max(*usual - *usual / 8);
                }
                last = end;
                *waits = drained.more;
                if !drained.more || turn == Turn::Look || *spent >= until {
                    break;
                }
            }
            more |= *waits;
        }
        self.ended = last;
        more
    }
}
