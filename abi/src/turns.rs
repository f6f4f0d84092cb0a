// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns: the division of a drain loop's time between clients.
//!
//! A pass gives each client that has something a share of time, in ticks of the
//! raw counter. Bytes or packets would be no measure, because a client chooses what
//! they cost. An account holds the time that was spent on each client. A client gets at
//! most a share more than the waiting client with the least. A step cannot be divided,
//! so a client whose step took longer than its share waits until the others have had as
//! much. Short steps come first, so that a client with little to take does not wait for
//! all those with much. Time that no other client needs goes to any client that has more.

use crate::ring::Consumer;
use crate::sink::{Drained, EventSink, Settings};
use core::time::Duration;

/// Longest pause between two events of a client after which it need not wake a drain loop that
/// waits for a KICK.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Time without a record after which a drain loop may stop its timer and wait for a KICK. Longer
/// than [`PAUSE`]: a client that has not paused was seen by then.
pub const REST: Duration = Duration::from_millis(50);

/// Period and budget of the passes of a drain loop.
#[derive(Clone, Copy, Debug)]
pub struct DrainPolicy {
    /// Time between passes without a KICK.
    pub period: Duration,
    /// Drain time of one client in one pass while others have something too.
    pub budget: Duration,
}

impl Default for DrainPolicy {
    fn default() -> Self {
        // A ring of 1 MiB holds 32,768 short records: at a million a second
        // it is full after 32 ms.
        // 250 us are a few packets. A pass over 16 clients that all have more
        // than that takes 4 ms.
        DrainPolicy { period: Duration::from_millis(1), budget: Duration::from_micros(250) }
    }
}

/// Runs one pass of a drain loop: calls `drain` with the sink's settings, between its
/// `begin_pass` and `end_pass`. Returns the result of `drain`.
pub fn pass<R>(sink: &(impl EventSink + ?Sized), drain: impl FnOnce(Settings) -> R) -> R {
    let drained = drain(sink.begin_pass());
    sink.end_pass();
    drained
}

/// Maximum lead of one client over the others, in shares. If the loop lost its CPU in
/// the middle of a step, that must not count against the client for long. Also the
/// length of one round.
const MOST_SHARES: u64 = 16;

/// Account of the time that was spent on one client.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    client: u32,
    /// Time spent on the client in ticks, on the scale of all accounts.
    spent: u64,
    /// Expected ticks of a step: those of the last one, or most of an earlier longer one.
    step: u64,
    /// Whether there was more to take at its last turn.
    waits: bool,
}

impl Account {
    /// Makes the account of a client on which no time was spent.
    pub const fn new(client: u32) -> Account {
        Account { client, spent: 0, step: 0, waits: false }
    }
}

/// A client's turn in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The client may take something.
    Take,
    /// The client may only look whether there is something.
    Look,
}

impl Turn {
    /// Calls the sink once, within the limits of the turn.
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

/// Lets the sink take everything that a client has now. Ends when the sink stops, and
/// at the latest when it has taken as much as ring and schema log hold.
pub fn drain_rest(sink: &(impl EventSink + ?Sized), client: u32, consumer: &mut Consumer<'_>) {
    consumer.up_to(consumer.head());
    // Bound: no client has more, whatever it claims. In an overwritten ring the first
    // step skips the records that are gone, and counts as much as a whole ring.
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

/// Counts the records that are left in a client's ring as lost: for the end, after the
/// last pass, if the sink could not take them. `stage` is that of [`Consumer::pull`].
pub fn discard_unread(
    sink: &(impl EventSink + ?Sized),
    client: u32,
    consumer: &mut Consumer<'_>,
    stage: &mut [u64],
) {
    consumer.discard_unread(stage);
    // Nothing is left to take: the sink reads the losses.
    sink.drain(client, consumer);
}

/// State of a group of clients that share a loop's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    /// Least time that was spent on a waiting client.
    floor: u64,
    /// Time at which the last round ended.
    ended: u64,
}

impl Turns {
    /// Gives each account a turn: calls `step` as often as its `share` of ticks allows,
    /// or once with [`Turn::Look`]. Returns whether some client has more.
    ///
    /// A round ends after 16 shares and a step. Clients that it did not reach come first
    /// in the next one. `now` reads the raw counter.
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
        // The time at which the next step would end. Sorted before accounts are raised to
        // the floor, so that a client that spends less than its share stays before others.
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
