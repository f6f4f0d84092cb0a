// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The host's side of all clients of a device or a segment: how far each client was read, and how the clients
//! take turns.
//!
//! A pass works on each client that has unread records or texts, and spends at most a share of time on the
//! client, in ticks of the raw counter. Bytes or packets would not be a fair measure, because a client
//! chooses the cost of its bytes and packets. Each client has an account of the time spent on it. A client
//! gets at most a share more time than the waiting client that has had the least time. A step cannot be
//! divided, so a client whose step took longer than its share waits until the other clients have had as much
//! time. The client with the shortest expected step comes first, so that a client with few records does not
//! wait for all clients with many records. If no other client needs the time, a client with more records gets
//! the time.

use crate::ring::{Consumer, ConsumerState};
use crate::sink::{DrainSink, Drained};
use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

/// Access to the rings of a device or a segment.
pub trait Rings {
    /// Returns a consumer of the client's ring for a step, or `None` if there is nothing to take.
    fn ring<'c>(&'c mut self, client: u32, state: &'c mut ConsumerState) -> Option<Consumer<'c>>;
}

/// The host's side of all clients.
#[derive(Debug)]
pub struct Clients {
    /// Progress of each client's consumer, by client number.
    pub states: Box<[ConsumerState]>,
    groups: Box<[Group]>,
}

impl Clients {
    /// Makes the state of `all` clients whose memory is zero. The first `relays` clients relay the points of
    /// other clients. The relays share the loop's time with each other. The relays' turns come after the
    /// turns of the other clients, because a relayed point may need a schema that another client has sent.
    pub fn new(relays: u32, all: u32) -> Clients {
        let groups = [relays..all, 0..relays].into_iter().filter(|group| !group.is_empty());
        Clients {
            states: (0..all).map(|_| ConsumerState::default()).collect(),
            groups: groups.map(Group::new).collect(),
        }
    }

    /// Gives each client a turn. If the client's account allows, the sink takes records of the client for
    /// `share` ticks. If the account does not allow this, the sink only reads whether the client has
    /// something to take. Returns whether any client has more to take.
    ///
    /// The round of a group ends after 16 shares and one step. Clients that the round did not reach come
    /// first in the next round. `now` reads the raw counter.
    pub fn round(
        &mut self,
        sink: &mut (impl DrainSink + ?Sized),
        rings: &mut impl Rings,
        share: u64,
        now: impl Fn() -> u64,
    ) -> bool {
        let Clients { states, groups } = self;
        let mut more = false;
        for group in groups {
            more |= group.round(share, &now, |client, takes| {
                let consumer = rings.ring(client, &mut states[client as usize]);
                let Some(mut consumer) = consumer else { return Drained::default() };
                if takes {
                    return sink.drain(client, &mut consumer);
                }
                let more = consumer.has_more();
                consumer.pause();
                sink.drain(client, &mut consumer);
                Drained { words: 0, more }
            });
        }
        more
    }

    /// Lets the sink take everything that the clients have now. The work on a client ends when the sink
    /// stops, or when the sink has taken twice as many words as the ring and the schema log hold.
    pub fn drain_rest(&mut self, sink: &mut (impl DrainSink + ?Sized), rings: &mut impl Rings) {
        self.each(rings, |client, consumer| drain_rest(sink, client, consumer));
    }

    /// After the last pass, counts the records that are left in the rings as lost, because the sink could not
    /// take them.
    pub fn discard_unread(&mut self, sink: &mut (impl DrainSink + ?Sized), rings: &mut impl Rings) {
        self.each(rings, |client, consumer| {
            consumer.discard_unread(&mut vec![0; consumer.stage_words()]);
            // The rings are empty, so the sink only reads the losses.
            sink.drain(client, consumer);
        });
    }

    fn each(&mut self, rings: &mut impl Rings, mut f: impl FnMut(u32, &mut Consumer<'_>)) {
        for client in self.groups.iter().flat_map(|group| group.clients.clone()) {
            if let Some(mut consumer) = rings.ring(client, &mut self.states[client as usize]) {
                f(client, &mut consumer);
            }
        }
    }
}

/// Maximum lead of a client's account over the smallest account of a waiting client, in shares. If the loop
/// loses its CPU in the middle of a client's step, the lost time counts on the client's account. Without this
/// limit, the client would have to wait until the other clients have had as much time as this client. A round
/// also ends after this many shares.
const MAX_SHARES: u64 = 16;

/// Account of the time spent on one client.
#[derive(Debug)]
struct Account {
    client: u32,
    /// Time spent on the client, in ticks on a scale that all accounts share.
    spent: u64,
    /// Expected ticks of a step: the ticks of the last step, or 7/8 of the previous expectation, whichever is
    /// more.
    step: u64,
    /// Whether the client had more to take after its last turn.
    waits: bool,
}

/// Lets the sink take everything that a client has now. The function returns when the sink stops, or when the
/// sink has taken twice as many words as the ring and the schema log hold.
pub fn drain_rest(sink: &mut (impl DrainSink + ?Sized), client: u32, consumer: &mut Consumer<'_>) {
    consumer.up_to(consumer.head());
    // The loop ends whatever the client writes to its memory, because each step counts at least one word. The
    // limit is twice the capacity for the sake of an overwritten ring: its first step skips the records that
    // are gone, and may count as many words as the ring holds.
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

/// Clients that share a loop's time.
#[derive(Debug)]
struct Group {
    clients: Range<u32>,
    /// Accounts in the order of the last round.
    accounts: Box<[Account]>,
    /// Least time that was spent on any waiting client.
    floor: u64,
    /// Value of the raw counter at which the last round ended.
    ended: u64,
}

impl Group {
    fn new(clients: Range<u32>) -> Group {
        let account = |client| Account { client, spent: 0, step: 0, waits: false };
        let accounts = clients.clone().map(account).collect();
        Group { clients, accounts, floor: 0, ended: 0 }
    }

    /// Calls `step` for each client. If the client's account allows, the argument is `true`: the step takes
    /// records, and is repeated until the client has used its `share` of ticks. Otherwise, the argument is
    /// `false`, and the step only looks. Returns whether any client has more to take.
    fn round(
        &mut self,
        share: u64,
        now: impl Fn() -> u64,
        mut step: impl FnMut(u32, bool) -> Drained,
    ) -> bool {
        let accounts = &mut self.accounts;
        let (share, begin) = (share.max(1), now());
        let most = share.saturating_mul(MAX_SHARES);
        self.floor = match accounts.iter().filter(|a| a.waits).map(|a| a.spent).min() {
            Some(least) => self.floor.max(least),
            // No client waited, so the idle time counts as spent on each client.
            None => self.floor.saturating_add(begin.saturating_sub(self.ended)),
        };
        let until = self.floor.saturating_add(share);
        // Sorts the clients by the time at which their next step would end. The sort comes before accounts
        // are raised to the floor. A client that spends less than its share has an account below the floor,
        // and thus stays before the other clients.
        accounts.sort_unstable_by_key(|a| (a.spent.saturating_add(a.step), a.client));
        let (mut last, mut more) = (begin, false);
        for account in accounts {
            let Account { client, spent, step: usual, waits } = account;
            *spent = (*spent).clamp(self.floor, self.floor.saturating_add(most));
            let takes = *spent < until && last.saturating_sub(begin) < most;
            loop {
                let drained = step(*client, takes);
                let end = now();
                let ticks = end.saturating_sub(last);
                *spent = spent.saturating_add(ticks);
                if takes {
                    *usual = ticks.max(*usual - *usual / 8);
                }
                last = end;
                *waits = drained.more;
                if !drained.more || !takes || *spent >= until {
                    break;
                }
            }
            more |= *waits;
        }
        self.ended = last;
        more
    }
}
