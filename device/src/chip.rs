// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The chip: registers, shared memory, and the host's state for each client.

use crate::counter::{Counter, Counts};
use crate::memory::Memory;
use crate::rest::{self, RestDecision};
use crate::state::REGISTERS;
use hypertrace_abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed, compiler_fence};
use hypertrace_abi::clients::{Clients, Rings};
use hypertrace_abi::clock;
use hypertrace_abi::config::{ConfigPage, Features, HostInfo, RingMode};
use hypertrace_abi::drain::{self, DrainPolicy};
use hypertrace_abi::layout::{
    Geometry, MASK_BYTES, PAGE, Region, WORD, guest_page, host_page, register,
};
use hypertrace_abi::ring::{ClientMemory, Consumer, ConsumerState};
use hypertrace_abi::sink::{DrainSink, EventSink, ReferencePoint, Status, with_drain};
use hypertrace_abi::slot::{self, BadSlot, Emitted, Versions};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::IntoBytes;

/// A way for the chip to wake the drain loop after a store that trapped.
pub trait DrainWaker: Send + Sync {
    /// Wakes the drain loop. This function must not block, because the chip calls it on vCPU threads.
    fn wake(&self);

    /// Returns whether [`DrainWaker::wake`] wakes the loop. If the result is false, the loop keeps its timer.
    fn works(&self) -> bool {
        true
    }
}

/// Calls a closure, for example `move || kick.wake()`.
impl<F: Fn() + Send + Sync> DrainWaker for F {
    fn wake(&self) {
        self();
    }
}

/// A waker that wakes nothing, for a drain loop that only uses a timer.
impl DrainWaker for () {
    fn wake(&self) {}

    fn works(&self) -> bool {
        false
    }
}

/// Ticks per second that no host's counter reaches.
const FASTEST_COUNTER: u64 = 10_000_000_000;

/// Choices of the VMM.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ChipConfig {
    /// Number n of clients that belong to vCPUs. These clients have the numbers 0 to n - 1. Programs lease
    /// the other clients. A number above the geometry's clients means all.
    pub vcpu_clients: u32,
    /// Whether the VMM arms KICK as an ioeventfd.
    pub has_doorbells: bool,
    /// Number of reference points that one client may make per second, 0 for no limit. In a burst, a client
    /// may make as many points at once as in one second. The limit is stricter if the sink does not know the
    /// host's frequency.
    pub reference_points_per_second: u32,
}

impl ChipConfig {
    /// Returns the features for the config page.
    fn features(&self) -> Features {
        let mut features = Features::TRAPS;
        features.set(Features::KICK, self.has_doorbells);
        features
    }

    /// Returns the configuration after `change` has modified it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut ChipConfig)) -> ChipConfig {
        change(&mut self);
        self
    }
}

/// Offset of a client's 2016 register, after the registers in the client's page.
const LEGACY: u64 = register::END;
/// Offset of the device's KICK, after the 2016 register of the first client.
const KICK: u64 = LEGACY + WORD;
const _: () = assert!(KICK / WORD + 1 == REGISTERS as u64);

/// A client's registers, aligned so that two vCPUs share no cache line.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Registers {
    /// Shadow word of each register, in which partial stores accumulate.
    pub(crate) shadows: [AtomicU64; REGISTERS],
    /// Time at which the next reference point is due, in host ticks (rate limit).
    due: AtomicU64,
    /// Whether a guest has stored to any of these registers since the device was made or reset.
    pub(crate) is_used: AtomicBool,
}

/// The device, which records events in an [`EventSink`].
pub struct Chip {
    // Fixed configuration.
    pub(crate) config: ConfigPage,
    pub(crate) geometry: Geometry,
    pub(crate) ring_mode: RingMode,
    /// Average interval that a client's reference points must keep, in host ticks, 0 for no limit.
    rate_interval: u64,
    /// Host ticks per second, for the rate limit.
    rate_second: u64,
    // Runtime glue.
    pub(crate) memory: Memory,
    pub(crate) sink: Box<dyn EventSink>,
    waker: Box<dyn DrainWaker>,
    // Volatile state.
    /// Clock epoch and mask version. Each reset changes the epoch.
    pub(crate) versions: Versions,
    pub(crate) registers: Box<[Registers]>,
    /// The drain loop's state of all clients, which vCPU threads never lock.
    pub(crate) clients: Mutex<Clients>,
    /// The drain loop's decision to rest.
    pub(crate) rest: Mutex<RestDecision>,
    /// Whether the drain loop waits for a KICK, or may do so after its next pass.
    rests: AtomicBool,
    counts: Counts,
}

impl fmt::Debug for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chip")
            .field("geometry", &self.geometry)
            .field("ring_mode", &self.ring_mode)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Chip {
    /// Makes a device on this memory.
    pub fn new(
        memory: Memory,
        config: &ChipConfig,
        sink: impl EventSink + 'static,
        waker: impl DrainWaker + 'static,
    ) -> Self {
        let geometry = *memory.geometry();
        let session = sink.session_info();
        // If the counter's frequency is unknown, the limit assumes a frequency that no counter reaches, so
        // the limit is too strict. Users notice such a limit, but would not notice a limit that is too loose.
        let second = match session.host_frequency {
            0 => FASTEST_COUNTER,
            frequency => frequency,
        };
        let host = HostInfo::default().with(|host| {
            host.ring_mode = session.ring_mode;
            host.features = config.features();
            host.session = session.session;
            host.guest_frequency = session.guest_frequency;
            host.host_frequency = session.host_frequency;
            host.vcpu_clients = config.vcpu_clients.min(geometry.clients);
            host.trace_parent = session.trace_parent;
        });
        let page = ConfigPage::new(&geometry, &host);
        memory.set_config(page.words().as_bytes());
        Chip {
            config: page,
            geometry,
            ring_mode: session.ring_mode,
            rate_interval: second
                .checked_div(config.reference_points_per_second.into())
                .unwrap_or(0),
            rate_second: second,
            memory,
            sink: Box::new(sink),
            waker: Box::new(waker),
            versions: Versions::default(),
            registers: (0..geometry.clients).map(|_| Registers::default()).collect(),
            clients: Mutex::new(Clients::new(0, geometry.clients)),
            rest: Mutex::new(RestDecision::new(geometry.clients as usize)),
            rests: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// Returns the sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the shared regions, for the VMM to map.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the config page. A reset changes the page's epoch.
    pub fn config_page(&self) -> ConfigPage {
        ConfigPage { epoch: self.versions.epoch.load(Relaxed), ..self.config }
    }

    /// Returns the config page's bytes, for a VMM that copies them to memory of its own.
    pub fn config_bytes(&self) -> Vec<u8> {
        self.config_page().words().as_bytes().to_vec()
    }

    /// Returns the current value of a counter.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts.get(counter)
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Performs a guest's load, on any thread. Fills every byte of `data`, with zeros where there is nothing
    /// to read.
    pub fn read(&self, region: Region, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let done = match region {
            Region::Config => {
                // After the config page, the region reads as zero.
                let page = self.config_page().words();
                if let Some(page) =
                    usize::try_from(offset).ok().and_then(|offset| page.as_bytes().get(offset..))
                {
                    let n = page.len().min(data.len());
                    data[..n].copy_from_slice(&page[..n]);
                }
                in_bounds(offset, data.len(), self.geometry.bar_size(region))
            }
            Region::Data | Region::Rings => {
                let memory = self.memory.region(region);
                self.trapped(memory.is_some_and(|shared| shared.load(offset, data)))
            }
            Region::Control => return self.read_register(offset, data),
        };
        if !done {
            self.counts.add(Counter::Region);
        }
    }

    /// Performs a guest's store, on any thread.
    pub fn write(&self, region: Region, offset: u64, data: &[u8]) {
        // The time is read first, so that everything that the guest did before the store has an earlier time.
        let now = clock::ticks();
        let done = match region {
            Region::Config => false,
            Region::Data | Region::Rings => {
                let memory = self.memory.region(region);
                self.trapped(memory.is_some_and(|shared| shared.store(offset, data)))
            }
            Region::Control => return self.write_register(now, offset, data),
        };
        if !done {
            self.counts.add(Counter::Region);
        }
    }

    /// Counts an access that trapped although the region is memory. `done`: whether the device has performed
    /// the access. Returns `done`.
    fn trapped(&self, done: bool) -> bool {
        if done {
            self.counts.add(Counter::MemoryTrapped);
        }
        done
    }

    /// Returns the client and the register at an offset into the control region.
    fn register(&self, offset: u64) -> Option<(u32, u64)> {
        let geometry = &self.geometry;
        let (client, register) = match offset.checked_sub(geometry.control_pages_offset()) {
            None => match offset.checked_sub(geometry.kick_offset()) {
                None => (offset / WORD, LEGACY),
                Some(at) if at < WORD => (0, KICK),
                Some(_) => return None,
            },
            Some(at) if at % PAGE < register::END => (at / PAGE, at % PAGE / WORD * WORD),
            Some(_) => return None,
        };
        (client < self.geometry.clients.into()).then_some((client as u32, register))
    }

    /// Returns the shadow word of a register.
    fn shadow(&self, client: u32, register: u64) -> &AtomicU64 {
        &self.registers[client as usize].shadows[(register / WORD) as usize]
    }

    fn read_register(&self, offset: u64, data: &mut [u8]) {
        if !is_register_access(offset, data.len()) {
            return self.counts.add(Counter::Width);
        }
        if self.register(offset).is_none() {
            self.counts.add(Counter::Unassigned);
        }
    }

    fn write_register(&self, now: u64, offset: u64, data: &[u8]) {
        if !is_register_access(offset, data.len()) {
            return self.counts.add(Counter::Width);
        }
        let Some((client, register)) = self.register(offset) else {
            return self.counts.add(Counter::Unassigned);
        };
        self.registers[client as usize].is_used.store(true, Relaxed);
        // This update is not atomic: if two vCPUs store to one register at the same time, their bytes may
        // mix, as on a bus.
        let word = self.shadow(client, register);
        let at = (offset % WORD) as usize;
        let bytes = match data.try_into() {
            // A whole word is the usual case, and avoids the call that copies bytes of unknown length.
            Ok(whole) => whole,
            Err(_) => {
                let mut bytes = word.load(Relaxed).to_le_bytes();
                bytes[at..at + data.len()].copy_from_slice(data);
                bytes
            }
        };
        let value = u64::from_le_bytes(bytes);
        word.store(value, Relaxed);
        if at + data.len() == WORD as usize {
            self.fire(now, client, register, value);
        }
    }

    fn fire(&self, now: u64, client: u32, register: u64, value: u64) {
        self.act(now, client, register, value);
        // The loop is woken after the record is complete, so that the loop finds the record.
        compiler_fence(Ordering::SeqCst);
        self.wake_drain();
    }

    /// Wakes the drain loop if it rests.
    #[inline]
    pub(crate) fn wake_drain(&self) {
        if self.rests.load(Relaxed) && self.rests.swap(false, Relaxed) {
            self.waker.wake();
        }
    }

    #[inline]
    fn act(&self, now: u64, client: u32, register: u64, value: u64) {
        match register {
            register::EMIT => self.emit(now, client, value),
            LEGACY => self.emit_legacy(now, client, value),
            KICK => {
                self.counts.add(Counter::KickTrapped);
                self.waker.wake();
            }
            register::LEASE if value == 0 => self.counts.add(Counter::LeaseZero),
            register::LEASE => {
                if let Some(memory) = self.client_memory(client) {
                    memory.host[host_page::LEASE].store(value, Ordering::Release);
                }
            }
            _ => {}
        }
    }

    /// Serves the reference point in the slot of page G, whose `seq` is the low half of `value`.
    fn emit(&self, now: u64, client: u32, value: u64) {
        let Some(memory) = self.client_memory(client) else {
            return;
        };
        let emitted = Emitted { client, seq: value as u32, host_time: now };
        slot::serve(&memory, emitted, &self.versions, |point| match point {
            Ok(point) => self.record(point),
            Err(bad) => {
                self.counts.add(match bad {
                    BadSlot::Sequence => Counter::SlotSequence,
                    BadSlot::Words => Counter::SlotWords,
                    BadSlot::Id => Counter::SlotId,
                });
                Status::Invalid
            }
        });
    }

    pub(crate) fn record(&self, point: &ReferencePoint<'_>) -> Status {
        if self.rate_interval != 0 && !self.is_due(point) {
            self.counts.add(Counter::RateLimited);
            return Status::Limited;
        }
        let status = self.sink.reference_point(point);
        if status == Status::Failed {
            self.counts.add(Counter::Failed);
        }
        status
    }

    /// Returns whether the rate limit allows a point, according to the generic cell rate algorithm. Each
    /// allowed point moves `due` later by one interval. If `due` would then be more than a second after now,
    /// the point is not allowed.
    fn is_due(&self, point: &ReferencePoint<'_>) -> bool {
        let due = &self.registers[point.client as usize].due;
        let now = point.host_time;
        let next = due.load(Relaxed).max(now) + self.rate_interval;
        let allowed = next - now <= self.rate_second;
        if allowed {
            due.store(next, Relaxed);
        }
        allowed
    }

    #[inline]
    pub(crate) fn client_memory(&self, client: u32) -> Option<ClientMemory<'_>> {
        ClientMemory::of_rings(self.memory.rings(), client, &self.geometry, self.ring_mode)
    }

    /// Drains as [`Chip::drain_pass`] does, for a drain loop that can rest. Returns the time until the next
    /// pass, or `None` if the loop waits for the next KICK. `is_kicked` says that a KICK or the waker caused
    /// this pass.
    ///
    /// The loop keeps its timer while the sink is not [quiet](DrainSink::quiet_for). The loop also keeps its
    /// timer if guests do not kick (`has_doorbells` is false), or if the waker does not
    /// [work](DrainWaker::works). In this case, the timer is [slower](drain::poll_after) while nobody records
    /// anything.
    ///
    /// If the loop waits for an eventfd, the loop reads the eventfd before each call. An eventfd that stays
    /// readable would wake the loop again at once. Guests may kick as often as they like, so a KICK should
    /// cause no call within 200 us of the last call.
    ///
    /// Only the drain loop's thread may call this, never a vCPU's thread.
    pub fn drain(&self, policy: &DrainPolicy, is_kicked: bool) -> Option<Duration> {
        let more = self.drain_pass(policy.budget);
        let rest = &mut *lock(&self.rest);
        let heads = (0..self.geometry.clients).map(|client| self.head(client));
        let now = rest.now();
        let stayed = rest.have_heads_stayed(heads);
        let is_quiet = rest.is_guest_quiet(stayed, is_kicked, now) && !more;
        let quiet_for = match is_quiet {
            true => with_drain(&*self.sink, |sink| sink.quiet_for()),
            false => Duration::ZERO,
        };
        let idle = rest.idle_for(!quiet_for.is_zero(), now);
        let is_woken = self.config.features().contains(Features::KICK) && self.waker.works();
        let DrainPolicy { period, .. } = *policy;
        match is_woken && rest::begins(idle, &self.rests) {
            true if quiet_for == Duration::MAX => None,
            true => Some(quiet_for.max(period)),
            false if more => Some(Duration::ZERO),
            false if is_woken => Some(period),
            false => Some(drain::poll_after(idle, period, self.geometry.ring_bytes)),
        }
    }

    pub(crate) fn head(&self, client: u32) -> u64 {
        let memory = self.client_memory(client);
        memory.map_or(0, |memory| memory.guest[guest_page::HEAD].load(Relaxed))
    }

    /// Drains every client for a share of time: one pass of the drain loop. Returns `true` if any client has
    /// more records.
    ///
    /// `budget` is the share of one client. A step cannot be divided, so a client may exceed its share; such
    /// a client then waits in later passes until the other clients have had as much time. Time that no other
    /// client needs goes to any client that has more records. Each client thus gets its part of the thread's
    /// time, whatever the other clients do. A pass lasts at most 16 shares, a step and a look at every
    /// client.
    ///
    /// Only the drain loop's thread may call this, never a vCPU's thread.
    pub fn drain_pass(&self, budget: Duration) -> bool {
        self.drain_pass_by(clock::in_ticks(budget, self.config.host_frequency), &clock::ticks)
    }

    /// Drains like [`Chip::drain_pass`], with the counter `now` and a budget of `share` ticks of this
    /// counter.
    #[doc(hidden)]
    pub fn drain_pass_by(&self, share: u64, now: &dyn Fn() -> u64) -> bool {
        let clients = &mut *lock(&self.clients);
        self.pass(|sink, rings| clients.round(sink, rings, share, now))
    }

    /// Drains everything that is in the rings now, without a limit of time. A drain loop calls this function
    /// at its end. Records that clients add meanwhile do not prolong the drain.
    ///
    /// Only the drain loop's thread may call this function, never a vCPU's thread.
    pub fn drain_all(&self) {
        let clients = &mut *lock(&self.clients);
        self.pass(|sink, rings| clients.drain_rest(sink, rings));
    }

    /// Ends a drain loop: drains the rest, and counts what cannot be written as lost. The drop of a
    /// [`DrainThread`](crate::DrainThread) does the same. A VMM's own loop calls this function after the last
    /// vCPU has stopped and before the session ends.
    pub fn end_drain(&self) {
        with_drain(&*self.sink, |sink| sink.last_pass());
        self.drain_all();
        // Records are left only if they could not be written.
        self.discard_unread();
    }

    /// Resets the device, as a reset of the machine does: registers, argument slots and rings become zero.
    /// The next guest leases its clients anew and has another clock. The session continues. The device first
    /// drains the rings, or counts their records as lost. The totals continue, and the sink begins another
    /// [generation](DrainSink::begin_generation).
    ///
    /// If the sink panics meanwhile, the device [counts](Counter::DrainPanicked) the panic and finishes the
    /// reset.
    ///
    /// Call this while no vCPU runs, on any thread that may wait for a disk.
    pub fn reset(&self) {
        let clients = &mut *lock(&self.clients);
        self.empty_rings(clients);
        self.versions.begin_generation(|epoch| {
            self.guarded(|| with_drain(&*self.sink, |sink| sink.begin_generation(epoch, &[])))
                .unwrap_or(epoch)
        });
        for client in &self.registers {
            client.shadows.iter().for_each(|shadow| shadow.store(0, Relaxed));
            client.is_used.store(false, Relaxed);
        }
        clients.states.fill_with(ConsumerState::default);
        self.memory.clear();
        self.memory.set_config(self.config_page().words().as_bytes());
    }

    /// Counts a reset that the machine asks for while a client is leased.
    #[cfg(feature = "vfio-user")]
    pub(crate) fn count_reset(&self) {
        let lease = |client| Some(self.client_memory(client)?.host[host_page::LEASE].load(Relaxed));
        if (0..self.geometry.clients).filter_map(lease).any(|token| token != 0) {
            self.counts.add(Counter::ResetLeased);
        }
    }

    /// Drains the rings. Records that the sink cannot take are counted as lost.
    pub(crate) fn empty_rings(&self, clients: &mut Clients) {
        let _ = self.guarded(|| {
            self.pass(|sink, rings| clients.drain_rest(sink, rings));
            with_drain(&*self.sink, |sink| clients.discard_unread(sink, &mut &*self));
        });
    }

    /// Calls the sink. If the sink panics, counts the panic and returns `None`.
    pub(crate) fn guarded<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        // The sink's locks are used even after a panic. At worst, the counts of a packet are lost.
        let done = catch_unwind(AssertUnwindSafe(call));
        done.inspect_err(|_| self.counts.add(Counter::DrainPanicked)).ok()
    }

    fn pass<R>(&self, drain: impl FnOnce(&mut dyn DrainSink, &mut &Chip) -> R) -> R {
        drain::pass(&*self.sink, |sink, settings| {
            if let Some(mask) = &settings.mask {
                self.set_mask(mask);
            }
            drain(sink, &mut &*self)
        })
    }

    /// Counts the records that are still in the rings as lost. If the sink could not take these records, call
    /// this function after the last pass, when no vCPU runs any more.
    pub fn discard_unread(&self) {
        let clients = &mut *lock(&self.clients);
        with_drain(&*self.sink, |sink| clients.discard_unread(sink, &mut &*self));
    }

    /// Replaces the enable mask, one byte per slot: 0 is on, 1 is off. Guests copy the mask when they see its
    /// new version. Only the drain loop and a restore call this.
    pub(crate) fn set_mask(&self, mask: &[u8; MASK_BYTES as usize]) {
        self.versions.set_mask(self.memory.rings(), &self.geometry, self.ring_mode, mask);
    }
}

impl Rings for &Chip {
    fn ring<'c>(&'c mut self, client: u32, state: &'c mut ConsumerState) -> Option<Consumer<'c>> {
        Some(Consumer::new(self.client_memory(client)?, state))
    }
}

/// Locks a mutex, poisoned or not, because a panic in a sink leaves no data half-written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_bounds(offset: u64, len: usize, size: u64) -> bool {
    offset.checked_add(len as u64).is_some_and(|end| end <= size)
}

/// Returns whether registers allow such an access: aligned, of 1, 2, 4 or 8 bytes.
fn is_register_access(offset: u64, len: usize) -> bool {
    matches!(len, 1 | 2 | 4 | 8) && offset.is_multiple_of(len as u64)
}
