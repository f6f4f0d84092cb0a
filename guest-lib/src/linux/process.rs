//! This process's channel: opened once, shared by all threads, and opened
//! again by a forked child.
//!
//! State that a fork must not inherit is in pages that the fork empties: the producers' private state, and
//! the word from which a process knows that the channel belongs to this process. The child finds zeros in
//! these pages, lets go of its parent's lock file, maps the device anew and leases clients of its own.
//!
//! The code is unsafe because all this state is reached through one pointer and never freed.
#![allow(unsafe_code)]

use super::cell::ClientCell;
use super::clock::Pace;
use super::mapping::{MemoryType, wiped_on_fork};
use super::name::{LeaseName, ProcessName};
use super::opened::Opened;
use super::options::{ChannelLocation, Info, Options};
use super::sys;
use super::{device, losses, pin, refresher, segment};
use crate::channel::Channel;
use crate::client::Client;
use crate::counts;
use crate::error::OpenError;
use crate::local::LocalHost;
use crate::mask;
use crate::os;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::layout::{guest_page, host_page};
use hypertrace_abi::ring::{ClientMemory, LeaseInfo, ProducerState, Wake};
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_segment::signals::SignalsBlocked;
use hypertrace_segment::{Bell, LockFile, Mapping, bus_error, token};
use std::fmt::Write;
use std::fs::File;
use std::iter::repeat;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

/// Longest time, in milliseconds, that an event waits for another thread to open a channel.
const MAX_MS: u32 = 1000;

/// Maximum number of eighths of a ring that are in use when a thread takes the ring, for each turn of the
/// search. The second turn accepts 7 eighths, because a block still has room then. The last two turns accept
/// any ring. Before the last turn the thread yields, because the host locks a free client while it gives a
/// ring's memory back.
const MAX_USED: [u64; 4] = [4, 7, 8, 8];

/// The last channel that was opened, here or in an ancestor.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// True after an event has searched for a device and found none.
static NOBODY: AtomicBool = AtomicBool::new(false);
/// Id of the process that is opening a channel, or 0. A forked child sees that the id is its parent's, and
/// does not wait for the parent's thread.
static OPENING: AtomicU32 = AtomicU32::new(0);

/// Words that are zero in a forked child.
#[repr(C)]
struct ForkGuard {
    /// 1: this process opened the channel.
    owned: AtomicU64,
    /// 1: this child has let go of what it inherited.
    detached: AtomicU64,
}

/// One producer's private state, aligned so that two threads share no cache line.
#[repr(align(128))]
struct State(ProducerState);

// SAFETY: the thread that has the slot's cell is the producer that uses this state. Other threads only call
// `revoke` and functions that read, as a producer allows. All fields are atomic.
unsafe impl Sync for State {}

/// A channel, and the use of its clients. The value is never freed.
pub(super) struct Process {
    channel: Channel<'static>,
    place: ChannelLocation,
    options: Options,
    memory_type: MemoryType,
    lock: Option<LockFile>,
    mappings: Vec<Mapping>,
    /// True after the kernel has taken the mappings away. Private memory is then in the place of the
    /// mappings.
    is_revoked: AtomicBool,
    pace: Pace,
    /// The process's name, for leases of a channel that several processes share.
    name: Option<ProcessName>,
    // In a forked child, the next two fields refer to zeros.
    fork_guard: &'static ForkGuard,
    states: &'static [State],
    // The index is the client's id minus the id of the first leasable client.
    cells: Box<[ClientCell]>,
    in_use: Box<[AtomicU64]>,
    /// The segment's bells if clients can wake the segment's host; else empty.
    bells: Box<[Bell<'static>]>,
}

/// A client that a thread of this process has.
struct Held<'a> {
    client: u32,
    cell: &'a ClientCell,
    state: &'a ProducerState,
    /// Token of the thread's lease.
    token: u64,
    memory: ClientMemory<'static>,
    /// Whether the host shows another holder.
    is_taken: bool,
}

/// Returns this process's channel, if it is open.
pub(super) fn ours() -> Option<&'static Process> {
    inherited().filter(|process| process.is_ours())
}

/// Returns this process's channel or an ancestor's.
fn inherited() -> Option<&'static Process> {
    // SAFETY: null or a leaked `Process`. ORDERING: pairs with the Release in `start`, so the `Process` is
    // whole.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Prepares a process for threads with clients. The library calls a function of this type before it opens a
/// channel. A process that opens several channels calls the function several times.
pub(super) type Prepare = fn() -> Result<(), OpenError>;

/// Reason why an event has no channel.
pub(super) enum Missing {
    /// There is no device.
    Nobody,
    /// No channel could be opened now, so this event is lost.
    Now,
}

/// Returns true if an event has searched for a device and found none, so that the next event need not search.
pub(super) fn is_hopeless() -> bool {
    NOBODY.load(Relaxed) && inherited().is_none()
}

/// Returns true if this process or an ancestor has opened a channel.
pub(super) fn was_opened() -> bool {
    inherited().is_some()
}

/// Returns this process's channel, if threads can lease its clients.
fn usable() -> Option<&'static Process> {
    ours().filter(|process| process.keeps_clients())
}

/// Returns the channel for an event. Looks for a device if no thread has looked yet.
pub(super) fn for_event(prepare: Prepare) -> Result<&'static Process, Missing> {
    if let Some(process) = usable() {
        return Ok(process);
    }
    if is_hopeless() {
        return Err(Missing::Nobody);
    }
    // A forked child shares its parent's host, and the parent has seen that host end.
    if losses::is_host_ended() {
        return Err(Missing::Now);
    }
    // Waits for a thread that is opening the channel, because events would be lost until then.
    let _opening = Opening::wait_for(MAX_MS).ok_or(Missing::Now)?;
    if let Some(process) = usable() {
        return Ok(process);
    }
    if is_hopeless() {
        return Err(Missing::Nobody);
    }
    let is_again = inherited().is_some();
    open_now(&Options::default(), prepare).map_err(|why| {
        if is_again {
            match why {
                OpenError::HostEnded(_) => losses::set_host_ended(true),
                why => losses::say_unusable(&why),
            }
            return Missing::Now;
        }
        NOBODY.store(true, Relaxed);
        mask::nobody_listens();
        Missing::Nobody
    })
}

pub(super) fn has_host_ended() -> bool {
    losses::is_host_ended() || ours().is_some_and(Process::has_host_ended)
}

/// Returns the span during which the host records: see [`crate::trace_parent`].
pub(super) fn trace_parent(prepare: Prepare) -> Option<TraceParent> {
    for_event(prepare).ok()?.channel.trace_parent()
}

/// Opens the channel: see [`crate::open`].
pub(super) fn open(options: &Options, prepare: Prepare) -> Result<Info, OpenError> {
    let _opening = Opening::wait();
    match usable() {
        Some(process) if process.has_host_ended() => Err(host_ended(&process.place)),
        Some(process) => Ok(process.info()),
        None => open_now(options, prepare).map(Process::info),
    }
}

/// Installs a channel: see [`crate::install`].
pub(super) fn install(
    channel: Channel<'static>,
    lock: Option<File>,
    prepare: Prepare,
) -> Result<Info, OpenError> {
    let _opening = Opening::wait();
    if usable().is_some() {
        return Err(OpenError::Open);
    }
    if let Some(parent) = inherited() {
        parent.detach_inherited();
    }
    let lock = lock.map(|file| LockFile::new(file, 0, LockFile::ANY));
    let opened = installed(channel, lock);
    start(opened, Options::default(), prepare).map(Process::info)
}

/// Returns a channel that the program has mapped.
fn installed(channel: Channel<'static>, lock: Option<LockFile>) -> Opened {
    let memory_type = match channel.fenced {
        true => MemoryType::Uncached,
        false => MemoryType::WriteBack,
    };
    let place = ChannelLocation::Installed;
    Opened { place, channel, memory_type, mappings: Vec::new(), lock, name: None }
}

/// Opens the device that `options` names, or the device of the channel that this process or its parent had.
/// The caller holds `Opening`, and this process has no usable channel.
fn open_now(options: &Options, prepare: Prepare) -> Result<&'static Process, OpenError> {
    let Some(parent) = inherited() else {
        let place = device::find(options)?;
        return start(device::open(&place, options)?, options.clone(), prepare);
    };
    parent.detach_inherited();
    let Channel { clock, reason, .. } = parent.channel;
    // Keeps the clock, because comparing the CPUs' counters takes a thread and up to half a second.
    let options = Options { clock: Some(clock), ..parent.options.clone() };
    let place = parent.place.clone();
    let mut opened = match (&place, &parent.lock) {
        (ChannelLocation::Installed, lock) => {
            let lock = lock.as_ref().and_then(LockFile::move_out).ok_or(OpenError::NoLock)?;
            installed(parent.channel, Some(lock))
        }
        (ChannelLocation::Segment(path), Some(lock)) => segment::reopen(lock, path, &options)?,
        _ => device::open(&place, &options)?,
    };
    opened.channel = opened.channel.with_clock_because(clock, reason);
    start(opened, options, prepare)
}

/// Makes this opened channel the channel of this process.
fn start(
    opened: Opened,
    options: Options,
    prepare: Prepare,
) -> Result<&'static Process, OpenError> {
    let channel = opened.channel;
    if channel.local.is_some_and(|local| local.has_ended()) {
        return Err(host_ended(&opened.place));
    }
    let clients = channel.leasable();
    if clients.is_empty() {
        return Err(OpenError::NoneToLease(channel.clients()));
    }
    if let Some(lock) = &opened.lock {
        lock.check(clients.end)
            .map_err(|why| OpenError::because("lock bytes of", lock_path(&opened.place), why))?;
    }
    let count = clients.len();
    // Pins the code first, because the next steps set up functions that the system calls later.
    pin::pin();
    prepare()?;
    // SAFETY: both types hold atomics only.
    let (fork_guard, states) =
        unsafe { wiped_on_fork::<ForkGuard, State>(count) }.map_err(|why| {
            let path = Path::new("pages for producers");
            OpenError::because("have a fork wipe", path, why)
        })?;
    fork_guard.owned.store(1, Relaxed);
    let waking = channel.local.filter(|local| !local.is_remote && !channel.is_lent);
    let waking = waking.map(|local| local.pages);
    let process: &'static Process = Box::leak(Box::new(Process {
        channel,
        place: opened.place,
        options,
        memory_type: opened.memory_type,
        lock: opened.lock,
        mappings: opened.mappings,
        is_revoked: AtomicBool::new(false),
        pace: Pace::new(channel.clock, channel.frequency()),
        name: opened.name,
        fork_guard,
        states,
        cells: (0..count).map(ClientCell::new).collect(),
        in_use: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        bells: waking
            .into_iter()
            .flat_map(|pages| clients.clone().map(move |n| Bell::new(pages, n)))
            .collect(),
    }));
    process.refresh_mask(clients.start);
    losses::set_host_ended(false);
    if matches!(
        process.place,
        ChannelLocation::Function(_) | ChannelLocation::Uio(_) | ChannelLocation::Ivshmem(_)
    ) {
        bus_error::watch(|address| ours().is_some_and(|process| process.replace(address)));
    }
    // ORDERING: pairs with the Acquire in `inherited`.
    PROCESS.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    refresher::start(move || {
        let is_last = ours().is_some_and(|last| std::ptr::eq(last, process));
        if is_last {
            process.look_after();
        } else if process.is_ours() {
            // Another channel has replaced this channel, because this channel has lost its locks. A thread
            // may have leased a client of the replaced channel at that moment. The call revokes this lease.
            process.keeps_clients();
        }
        is_last
    });
    Ok(process)
}

fn host_ended(place: &ChannelLocation) -> OpenError {
    OpenError::HostEnded(lock_path(place).to_owned())
}

/// Returns how errors name a lock file.
fn lock_path(place: &ChannelLocation) -> &Path {
    match place {
        ChannelLocation::Function(function)
        | ChannelLocation::Uio(function)
        | ChannelLocation::Ivshmem(function) => function,
        ChannelLocation::Window(_) => Path::new("physical memory"),
        ChannelLocation::Segment(path) | ChannelLocation::Module(path) => path,
        ChannelLocation::Installed => Path::new("the lock file"),
    }
}

/// Releases the parent's channel in a forked child. This function must be safe in a signal handler.
pub(super) fn in_child() {
    OPENING.store(0, Relaxed);
    counts::forget();
    mask::forget();
    sys::forget_end();
    if let Some(parent) = inherited().filter(|process| !process.is_ours()) {
        parent.detach_inherited();
    }
}

/// The right to open a channel, with signals blocked.
struct Opening {
    _signals_blocked: SignalsBlocked,
}

impl Opening {
    /// Begins to open the channel. Returns `None` if another thread is opening the channel.
    fn begin() -> Option<Opening> {
        let signals_blocked = SignalsBlocked::begin();
        let me = std::process::id();
        let other = OPENING.load(Relaxed);
        (other != me && OPENING.compare_exchange(other, me, Ordering::Acquire, Relaxed).is_ok())
            // `then_some` would make an `Opening` in any case. The drop of this `Opening` would end another
            // thread's opening.
            .then(|| Opening { _signals_blocked: signals_blocked })
    }

    fn wait() -> Opening {
        loop {
            if let Some(opening) = Opening::wait_for(u32::MAX) {
                return opening;
            }
        }
    }

    /// Begins to open the channel as soon as no other thread is opening it. Returns `None` after `most_ms`
    /// milliseconds.
    fn wait_for(most_ms: u32) -> Option<Opening> {
        for _ in 0..most_ms {
            if let Some(opening) = Opening::begin() {
                return Some(opening);
            }
            os::nap_or_yield();
        }
        None
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.store(0, Ordering::Release);
    }
}

impl Process {
    /// Returns true if this process opened the channel, and not an ancestor.
    pub(super) fn is_ours(&self) -> bool {
        self.fork_guard.owned.load(Relaxed) == 1
    }

    pub(super) fn info(&self) -> Info {
        Info {
            place: self.place.clone(),
            clients: self.channel.leasable(),
            memory_type: self.memory_type,
            clock: self.pace.clock(),
            frequency: self.channel.frequency(),
            traps: self.channel.traps(),
            legacy_args: self.channel.geometry.legacy_args,
        }
    }

    /// Returns true if the cell belongs to this channel, not to an ancestor's.
    pub(super) fn has(&self, cell: &ClientCell) -> bool {
        self.cells.as_ptr_range().contains(&std::ptr::from_ref(cell))
    }

    /// Returns the pace of this channel's clock.
    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Releases the parent's locks in a forked child, and maps private memory where
    /// an interrupted emit would store.
    fn detach_inherited(&self) {
        if self.is_ours() || self.fork_guard.detached.swap(1, Relaxed) == 1 {
            return;
        }
        if let Some(lock) = &self.lock {
            match self.place {
                // Opens the file anew now, because the program may close the inherited descriptor later.
                // Without this descriptor, there may be no path to the file.
                ChannelLocation::Installed | ChannelLocation::Segment(_) => lock.reopen(),
                _ => lock.close(),
            }
        }
        for mapping in &self.mappings {
            mapping.detach();
        }
    }

    /// Returns true if the channel's host has ended or the channel's device is gone. The function also notes
    /// the cause, because the count of later events needs the cause.
    fn has_host_ended(&self) -> bool {
        if self.is_device_gone() {
            losses::set_device_gone();
            return true;
        }
        let has_ended = self.channel.local.is_some_and(|local| local.has_ended());
        if has_ended {
            losses::set_host_ended(true);
        }
        has_ended
    }

    /// Returns true if the kernel has taken the device away. Either the kernel's module has taken over a
    /// function that this process used through sysfs, or the module has lost the function that this process
    /// used through the module.
    fn is_device_gone(&self) -> bool {
        self.is_revoked.load(Relaxed) || self.lock.as_ref().is_some_and(LockFile::is_device_gone)
    }

    /// Puts private memory in the place of all mappings if the address is in one of them; else returns
    /// `false`. A signal handler calls this function after a failed access.
    pub(super) fn replace(&self, address: usize) -> bool {
        let is_here = self.mappings.iter().any(|mapping| mapping.range().contains(&address));
        // Another thread that comes here meanwhile repeats its access until the mappings are replaced.
        if is_here && !self.is_revoked.swap(true, Relaxed) {
            self.mappings.iter().for_each(Mapping::replace);
        }
        is_here
    }

    /// If the host has ended, ends all leases, so that each thread counts its next event as lost. The
    /// function then also counts the events since the last look that found the host.
    pub(super) fn look_at_host(&self) {
        if !self.has_host_ended() {
            return;
        }
        for Held { state, token, .. } in self.held() {
            state.revoke(token);
        }
        let is_used = |cell: &&ClientCell| {
            let (word, bit) = self.bit(cell.slot());
            word.load(Relaxed) & bit != 0
        };
        self.cells.iter().filter(is_used).for_each(|cell| self.count_since_last_look(cell));
    }

    /// Counts a client's events since the last look that found the host. The host may have recorded some of
    /// these events.
    fn count_since_last_look(&self, cell: &ClientCell) {
        let attempted = self.states[cell.slot()].0.attempted();
        losses::count_left(attempted.saturating_sub(cell.attempted.swap(attempted, Relaxed)));
    }

    /// Returns whether the process still has its lock file. If the process no longer has the lock file, the
    /// function revokes the process's leases. A program that closes all descriptors that it does not know
    /// also closes the lock file. The clients are then free for other processes.
    fn keeps_clients(&self) -> bool {
        let keeps = self.lock.as_ref().is_none_or(LockFile::is_open);
        if !keeps {
            for Held { state, token, .. } in self.held() {
                state.revoke(token);
            }
        }
        keeps
    }

    /// Claims a free client for the calling thread. `left` is the client that the thread abandons, if any.
    ///
    /// Takes the client with the lowest number that has room in its ring. Each lease begins a block, so
    /// threads that come and go would fill the ring of the first client even with few events.
    pub(super) fn claim(&'static self, left: Option<u32>) -> Option<&'static ClientCell> {
        if self.has_host_ended() {
            return None;
        }
        let mut by_room = MAX_USED.into_iter().enumerate().flat_map(|(turn, most)| {
            if turn + 1 == MAX_USED.len() {
                os::pause();
            }
            self.cells.iter().zip(repeat(most))
        });
        let cell = by_room.find(|(cell, most)| {
            let (word, bit) = self.bit(cell.slot());
            if word.load(Relaxed) & bit != 0
                || !self.has_room(cell, *most)
                || word.fetch_or(bit, Ordering::Acquire) & bit != 0
            {
                return false;
            }
            let leased = self.lease(cell, left);
            if !leased {
                word.fetch_and(!bit, Ordering::Release);
            }
            leased
        });
        cell.map(|(cell, _)| cell)
    }

    /// Returns whether at most `most` eighths of a client's ring are in use now.
    fn has_room(&self, cell: &ClientCell, most: u64) -> bool {
        self.channel.memory(self.client(cell.slot())).is_ok_and(|memory| {
            let head = memory.guest[guest_page::HEAD].load(Relaxed);
            // ORDERING: the result is an estimate, because the holder loads HEAD and TAIL again.
            let used = head.wrapping_sub(memory.host[host_page::TAIL].load(Relaxed));
            most == 8
                || memory.mode() == RingMode::Overwrite
                || used <= memory.capacity() / 8 * most
        })
    }

    fn lease(&'static self, cell: &'static ClientCell, left: Option<u32>) -> bool {
        let client = self.client(cell.slot());
        if self.lock.as_ref().is_some_and(|lock| !lock.lock(client)) {
            return false;
        }
        let mut name = [0; 16];
        let thread = sys::thread_name(&mut name);
        let mut text = LeaseName::default();
        // The write cannot fail, because a name that is too long is cut off.
        let _ = match &self.name {
            Some(process) if process.is_of_all(thread) => text.write_str(&process.name),
            Some(process) => write!(text, "{}/{thread}", process.name),
            None => text.write_str(thread),
        };
        if let Some(left) = left {
            let _ = write!(text, ", before on client {left}");
        }
        let info = LeaseInfo {
            pid: std::process::id(),
            tid: sys::thread_id() as u32,
            name: text.as_str(),
        };
        let state = &self.states[cell.slot()].0;
        match Client::lease(self.channel, client, state, token(), &info) {
            Ok(client) => {
                // SAFETY: this thread has set the cell's bit, and the thread that had the cell before has
                // cleared the bit.
                unsafe {
                    cell.fill(client.of_thread(self.own_place(), self.bells.get(cell.slot())))
                };
                let attempted = state.attempted();
                cell.attempted_now.store(attempted, Relaxed);
                cell.attempted.store(attempted, Relaxed);
                true
            }
            Err(_) => {
                self.unlock(client);
                false
            }
        }
    }

    /// Takes a cell of this process back from the calling thread, which is ending.
    pub(super) fn give_back(&self, cell: &ClientCell) {
        // If the client was revoked, the client has another holder, and this thread must not store to that
        // holder's words.
        if self.keeps_clients() && self.states[cell.slot()].0.is_leased() {
            // SAFETY: the calling thread had the cell until now.
            unsafe { cell.client() }.producer().release();
        }
        if self.has_host_ended() {
            self.count_since_last_look(cell);
        }
        self.unlock(self.client(cell.slot()));
        let (word, bit) = self.bit(cell.slot());
        word.fetch_and(!bit, Ordering::Release);
    }

    /// Publishes the count of events without a client on page L, if the process can store there.
    pub(super) fn publish_unattached(&self) {
        if let Some(local) = self.page_l() {
            counts::publish(local.pages.lost_unattached());
        }
    }

    fn page_l(&self) -> Option<LocalHost> {
        self.channel.local.filter(|_| !self.channel.is_lent)
    }

    /// Returns the count of events without a client, if threads with a client must publish it.
    fn own_place(&self) -> Option<&'static AtomicU64> {
        self.page_l().is_none().then_some(&counts::UNPUBLISHED)
    }

    /// Returns the clients of this process's threads.
    fn held(&self) -> impl Iterator<Item = Held<'_>> {
        self.channel.leasable().zip(&self.cells).zip(self.states).filter_map(
            |((client, cell), state)| {
                let (word, bit) = self.bit(cell.slot());
                let State(state) = state;
                let token = state.token();
                if word.load(Relaxed) & bit == 0 || token == 0 {
                    return None;
                }
                let memory = self.channel.memory(client).ok()?;
                let is_taken =
                    self.channel.traps() && memory.host[host_page::LEASE].load(Relaxed) != token;
                Some(Held { client, cell, state, token, memory, is_taken })
            },
        )
    }

    /// Does the refresher's periodic work: copies the mask, finds clients that another holder has taken, and
    /// publishes losses of threads without a client. Calls only those functions of a producer that other
    /// threads may call.
    pub(super) fn look_after(&self) {
        self.keeps_clients();
        // Reads the counts of events before the look at the device. If the look finds the device, the device
        // was still there when the threads tried to emit these events.
        for Held { cell, state, .. } in self.held() {
            cell.attempted_now.store(state.attempted(), Relaxed);
        }
        self.look_at_host();
        let held = self.held().next().map(|held| held.client);
        self.refresh_mask(held.unwrap_or(self.channel.leasable().start));
        for Held { cell, state, token, memory, is_taken, .. } in self.held() {
            if !is_taken {
                cell.attempted.store(cell.attempted_now.load(Relaxed), Relaxed);
                cell.suspect.store(0, Relaxed);
                self.kick_for(cell, &memory);
            // A lease is revoked at the second look, because a transport may hold back our own store to
            // LEASE.
            } else if cell.suspect.swap(token, Relaxed) == token && state.revoke(token) {
                counts::add(&counts::TAKEN);
                // If the client has no holder now, the device was reset, or the device's memory is out of
                // reach, as after QEMU's loadvm. The events since then are lost.
                if memory.host[host_page::LEASE].load(Relaxed) == 0 {
                    let before = cell.attempted.load(Relaxed);
                    counts::unattached(state.attempted().saturating_sub(before));
                }
            }
        }
        self.publish_unattached();
    }

    /// Wakes the host if a client's ring still has records that were there at the last look. The client's
    /// thread may have lost its CPU in the middle of an emit, and the host may have gone to sleep before the
    /// emit ended.
    fn kick_for(&self, cell: &ClientCell, memory: &ClientMemory<'_>) {
        let Some(control) = self.channel.control.filter(|_| self.channel.needs_kicks()) else {
            return;
        };
        if memory.mode() == RingMode::Overwrite {
            return;
        }
        let tail = memory.host[host_page::TAIL].load(Relaxed);
        let head = memory.guest[guest_page::HEAD].load(Relaxed);
        // If `looked_at` is the head of an earlier holder's ring, this head is below the tail.
        if cell.looked_at.swap(head, Relaxed) > tail {
            control.kick().wake();
        }
    }

    fn refresh_mask(&self, client: u32) {
        if let Ok(memory) = self.channel.memory(client) {
            mask::refresh(self.channel.rings, Channel::mask_version(&memory));
        }
    }

    fn client(&self, slot: usize) -> u32 {
        self.channel.leasable().start + slot as u32
    }

    fn unlock(&self, client: u32) {
        if let Some(lock) = &self.lock {
            lock.unlock(client);
        }
    }

    fn bit(&self, slot: usize) -> (&AtomicU64, u64) {
        (&self.in_use[slot / 64], 1 << (slot % 64))
    }
}
