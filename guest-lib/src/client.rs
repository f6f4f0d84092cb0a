//! A client: one vCPU's or one thread's own ring and registers.

use crate::channel::Channel;
use crate::counts;
use crate::error::OpenError;
use crate::local::LocalHost;
use crate::mask;
use crate::os;
use crate::time::{Clock, MAX_TURNS};
use hypertrace_abi::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_abi::layout::{host_page, register};
use hypertrace_abi::record::{ClockKind, Flags, HEADER_WORDS};
use hypertrace_abi::ring::{Emit, Lease, LeaseInfo, NewRecord, Producer, ProducerState, Wake};
use hypertrace_abi::sink::Status;
#[cfg(feature = "std")]
use hypertrace_segment::Bell;

/// The host's answer to a reference point. The host reads its clock between `before` and `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// Outcome of the reference point.
    pub status: Status,
    /// This client's clock before the store to the host.
    pub before: u64,
    /// The host's raw counter, in its own ticks. 0 if no host answered ([`Status::Failed`], or bare rings).
    pub host_time: u64,
    /// This client's clock after the store to the host.
    pub after: u64,
    /// The host's clock epoch, which changes when time jumps (restore, migration).
    pub epoch: u64,
}

/// One vCPU's or thread's own ring and registers. A client stays on the thread that leased it, because two
/// threads would overwrite each other's records.
///
/// ```compile_fail,E0277
/// fn share(client: &hypertrace::Client<'_>) {
///     std::thread::scope(|threads| {
///         threads.spawn(|| client.kick());
///     });
/// }
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Client<'m> {
    // `producer` comes first, so that what each emit reads is in one cache line.
    producer: Producer<'m>,
    channel: Channel<'m>,
    index: u32,
    /// CPU of reference points. `None`: the CPU that the thread runs on at each point.
    cpu: Option<u32>,
    seq: AtomicU32,
    /// Number of region ids that the client has given out. With the feature `std`, the thread counts the ids
    /// instead.
    regions: AtomicU64,
}

impl<'m> Client<'m> {
    /// Leases client `index` of the channel. The client must have no other holder meanwhile. A second holder
    /// does no harm to the host, but events are lost.
    ///
    /// `state` is private memory of this client, and `token` a nonzero number that no other holder has. The
    /// lease announces the channel's clock. Reference points carry the number of a CPU. In a kernel, where
    /// `info.pid` is 0, and without the feature `std`, this number is `info.tid`. In all other cases, this
    /// number is the CPU on which the calling thread runs.
    ///
    /// # Errors
    /// If the device has no such client.
    pub fn lease(
        channel: Channel<'m>,
        index: u32,
        state: &'m ProducerState,
        token: u64,
        info: &LeaseInfo<'_>,
    ) -> Result<Self, OpenError> {
        let memory = channel.memory(index)?;
        if let Some(control) = channel.control {
            control.store(index, register::LEASE, token);
        }
        // If registers are memory, a late reply to the last holder must not look like a reply to this holder.
        let mut seq = 0;
        if let (Some(local), Some(control)) = (channel.local, channel.control) {
            local.pages.notify(index);
            seq = control.emitted(index);
        }
        let clock = channel.clock;
        let lease = Lease::new(token, clock.kind(), clock.now(), info).because(channel.reason);
        let mut producer = Producer::lease(memory, state, lease, channel.fenced);
        if channel.needs_kicks()
            && let Some(control) = channel.control
        {
            producer = producer.waking(control.kick(), channel.pause());
        }
        #[cfg(feature = "std")]
        if let Clock::MonotonicRaw = channel.clock {
            producer = producer.with_system_clock(os::nanoseconds);
        }
        let is_thread = cfg!(feature = "std") && info.pid != 0;
        let cpu = (!is_thread).then_some(info.tid);
        let (seq, regions) = (AtomicU32::new(seq), AtomicU64::new(0));
        let client = Client { producer, channel, index, cpu, seq, regions };
        client.refresh_mask();
        Ok(client)
    }

    /// Makes this a thread's client: reference points carry the CPU that the thread runs on. If `unattached`
    /// is given, the client publishes this count of events without a client. If `bell` is given, the client
    /// rings the bell when the client's ring fills.
    #[cfg(feature = "std")]
    pub(crate) fn of_thread(
        self,
        unattached: Option<&'m AtomicU64>,
        bell: Option<&'m Bell<'static>>,
    ) -> Self {
        let mut producer = self.producer;
        if let Some(events) = unattached {
            producer = producer.with_unattached(events);
        }
        if let Some(bell) = bell {
            producer = producer.waking(bell, u64::MAX);
        }
        producer.refresh(self.channel.clock.now());
        Client { producer, cpu: None, ..self }
    }

    /// Returns the client's number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the channel that the client belongs to.
    pub fn channel(&self) -> &Channel<'m> {
        &self.channel
    }

    /// Returns the ring's producer.
    pub fn producer(&self) -> &Producer<'m> {
        &self.producer
    }

    /// Emits an event: [`event!`](crate::event) calls this.
    #[inline(always)]
    pub fn emit<S: Site, F: Fields>(&self, site: S, fields: F) -> Emit {
        self.producer.emit((site, fields), ticks)
    }

    /// Commits an event: [`commit!`](crate::commit) calls this. The wait for room ends after a second, or at
    /// once if the host is known to be dead; the event is counted then.
    #[inline(always)]
    pub fn commit<S: Site, F: Fields>(&self, site: S, fields: F) -> Emit {
        let record = NewRecord::from((site, fields)).with_flags(Flags::REFERENCE_POINT);
        match self.producer.try_emit(record, ticks) {
            Emit::Full => self.commit_slowly(record),
            done => done,
        }
    }

    #[cold]
    #[inline(never)]
    fn commit_slowly<S: Site, F: Fields>(&self, record: NewRecord<S, F>) -> Emit {
        self.emit_waiting(|| self.producer.try_emit(record, ticks))
    }

    /// Makes a reference point: [`reference_point!`](crate::reference_point) calls this.
    ///
    /// # Errors
    /// [`Emit::Busy`], [`Emit::Full`] (both counted) or [`Emit::Unleased`].
    pub fn reference_point<S: Site, F: Fields>(&self, site: S, fields: F) -> Result<Reply, Emit> {
        let clock = self.channel.clock;
        let Some(control) = self.channel.control else {
            let before = clock.now();
            let record = NewRecord::from((site, fields)).with_flags(Flags::REFERENCE_POINT);
            return match self.emit_waiting(|| self.producer.try_emit(record, ticks)) {
                Emit::Recorded => Ok(Reply {
                    status: Status::Recorded,
                    before,
                    host_time: 0,
                    after: clock.now(),
                    epoch: 0,
                }),
                why => Err(why),
            };
        };
        let host = self.producer.memory().host;
        let name_hash = u64::from(site.name_hash());
        let reply = self.producer.slot(
            site,
            || clock.now(),
            || {
                // Skips the number 0, because a store of 0 to EMIT does not ask for a point.
                let seq = self.seq.load(Relaxed).wrapping_add(1).max(1);
                self.seq.store(seq, Relaxed);
                seq
            },
            // For a segment, the CPU is 0: an emulator's plugin knows the CPU anyway, and the system call for
            // the CPU would be most of a point's cost.
            if self.channel.local.is_some() { 0 } else { self.cpu() },
            fields,
            |before, seq| {
                control.store(self.index, register::EMIT, u64::from(seq) | name_hash << 32);
                // ORDERING: pairs with the Release store of the reply's last word.
                let mut reply = host[host_page::REPLY].load(Ordering::Acquire);
                if reply as u32 != seq
                    && let Some(local) = &self.channel.local
                {
                    // No emulator's plugin has answered, so the host's thread must answer.
                    local.ask(self.index, self.producer.memory(), self.cpu(), seq);
                    reply = host[host_page::REPLY].load(Ordering::Acquire);
                }
                let is_answered = reply as u32 == seq;
                if !is_answered && self.channel.traps() {
                    // Either the VMM has lost the device's server, or the device is gone, and the load
                    // returned all ones.
                    counts::add(&counts::UNANSWERED);
                }
                // Without an answer to this point, the words belong to an earlier answer.
                let answer = |word: usize| match is_answered {
                    true => host[word].load(Relaxed),
                    false => 0,
                };
                Reply {
                    status: match (is_answered, reply >> 32) {
                        (true, 0) => Status::Recorded,
                        (true, 1) => Status::Filtered,
                        (true, 3) => Status::Invalid,
                        (true, 4) => Status::Limited,
                        _ => Status::Failed,
                    },
                    before,
                    host_time: answer(host_page::REPLY_HOST_TIME),
                    after: clock.now(),
                    epoch: answer(host_page::REPLY_EPOCH),
                }
            },
        )?;
        self.refresh_mask();
        Ok(reply)
    }

    /// Returns an id that no earlier call has returned: [`region!`](crate::region) calls this.
    #[inline(always)]
    pub fn next_region(&self) -> u64 {
        os::next_region(&self.regions)
    }

    /// Asks the host to drain soon.
    pub fn kick(&self) {
        if let Some(control) = self.channel.control.filter(|_| self.channel.traps()) {
            control.kick().wake();
        }
        if let Some(local) = &self.channel.local {
            local.pages.ring(self.index);
        }
    }

    /// Waits until the ring has room for the next `events` events. The fields of each event may take at most
    /// `words` words. If there is no room, the function kicks the host and waits at most a second. Returns
    /// `false` if there is still no room, or if there can never be enough room. This function is for programs
    /// that prefer waiting to losing an event.
    ///
    /// A field takes one word; a string takes its bytes and 4 more, rounded up to words.
    pub fn wait_for_room(&self, events: u64, words: u64) -> bool {
        let words = words.saturating_add(HEADER_WORDS as u64);
        let has_room = || self.producer.has_room(events, words);
        if has_room() {
            return true;
        }
        self.kick();
        Deadline::new(&self.channel, self.producer.memory().host).wait_for(has_room)
    }

    /// Copies a changed enable mask and publishes the counts of dropped events. This function is for programs
    /// in which no thread copies the mask and publishes the counts. Returns `false` if the host shows another
    /// holder. The caller must then stop using the client. The only exception is a transport that may still
    /// hold back this lease's store to LEASE.
    pub fn poll(&self) -> bool {
        self.producer.refresh(self.channel.clock.now());
        self.refresh_mask();
        let told = self.producer.memory().host[host_page::LEASE].load(Relaxed);
        !self.channel.traps() || told == self.producer.state().token()
    }

    /// Publishes the counts of dropped events and gives the client up.
    pub fn release(self) {
        self.producer.release();
    }

    #[inline]
    fn refresh_mask(&self) {
        let version = Channel::mask_version(self.producer.memory());
        mask::refresh(self.channel.rings, version);
    }

    fn cpu(&self) -> u32 {
        self.cpu.unwrap_or_else(os::cpu)
    }

    /// Emits, and waits for a bounded time for room.
    pub(crate) fn emit_waiting(&self, emit: impl Fn() -> Emit) -> Emit {
        let mut deadline = Deadline::new(&self.channel, self.producer.memory().host);
        let mut emitted = Emit::Full;
        let is_done = deadline.wait_for(|| {
            emitted = emit();
            if emitted == Emit::Full {
                self.kick();
            }
            emitted != Emit::Full
        });
        if !is_done {
            self.producer.count_full();
        }
        emitted
    }
}

/// A bounded wait for the host: a second, as the clock measures, or no wait if the host says that it cannot
/// write.
struct Deadline<'m> {
    clock: Clock,
    until: u64,
    turns: u32,
    local: Option<LocalHost>,
    /// Page H of the client.
    host: &'m [AtomicU64],
}

impl<'m> Deadline<'m> {
    fn new(channel: &Channel<'_>, host: &'m [AtomicU64]) -> Deadline<'m> {
        let clock = channel.clock;
        let (second, turns) = match (clock.kind(), channel.guest_frequency) {
            (ClockKind::MonotonicRaw, _) => (1_000_000_000, u32::MAX),
            (ClockKind::Tsc, 0) => (u64::MAX, MAX_TURNS),
            (ClockKind::Tsc, frequency) => (frequency, u32::MAX),
        };
        let until = clock.now().saturating_add(second);
        Deadline { clock, until, turns, local: channel.local, host }
    }

    /// Waits until `is_done` returns true. Returns false if that takes too long.
    ///
    /// The function calls `is_done` once more after the deadline, because the VM may have been paused for the
    /// whole wait.
    fn wait_for(&mut self, mut is_done: impl FnMut() -> bool) -> bool {
        while !is_done() {
            if !self.wait() {
                return is_done();
            }
        }
        true
    }

    /// Waits a turn. Returns `false` if the wait is over.
    fn wait(&mut self) -> bool {
        let cannot_write = self.host[host_page::WRITE_FAILED].load(Relaxed) != 0;
        if cannot_write || self.local.is_some_and(|local| local.is_dead()) {
            return false;
        }
        os::pause();
        self.turns = self.turns.saturating_sub(1);
        let more = self.turns > 0 && self.clock.now() < self.until;
        if let Some(local) = self.local.filter(|_| !more) {
            local.give_up();
        }
        more
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use hypertrace_abi::atomic::AtomicU64;
    use hypertrace_abi::config::{ConfigPage, HostInfo};
    use hypertrace_abi::layout::Geometry;

    fn rings(geometry: &Geometry) -> Vec<AtomicU64> {
        (0..geometry.rings_size() / 8).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn what_was_done_during_a_pause_of_the_vm_is_seen_after_it() {
        let geometry = Geometry::default();
        let rings = rings(&geometry);
        // At one tick per second, the first turn of the loop takes longer than any bounded wait.
        let facts = HostInfo::default().with(|info| info.guest_frequency = 1);
        let channel = Channel::local(&ConfigPage::new(&geometry, &facts), &rings).unwrap();
        let host = channel.memory(0).unwrap().host;
        let mut looks = 0;

        let is_done = Deadline::new(&channel, host).wait_for(|| {
            looks += 1;
            looks == 2
        });

        assert!(is_done, "{looks} looks");
    }

    #[test]
    fn a_threads_number_is_not_taken_as_its_cpu() {
        let geometry = Geometry::default();
        let rings = rings(&geometry);
        let page = ConfigPage::new(&geometry, &HostInfo::default());
        let channel = Channel::local(&page, &rings).unwrap();
        let cpu = |pid, tid| {
            let state = ProducerState::new();
            let info = LeaseInfo { pid, tid, name: "test" };
            Client::lease(channel, 0, &state, 9, &info).unwrap().cpu()
        };

        assert_eq!(cpu(0, 4_000_000), 4_000_000, "a kernel's CPU");
        assert!(cpu(50, 4_000_000) < 4_000_000, "a thread's number");
    }
}
