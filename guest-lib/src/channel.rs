//! A channel: the device's mapped regions, and the facts of its config page.
//!
//! The code is unsafe because regions are addresses that the caller passes.
#![allow(unsafe_code)]

use crate::error::OpenError;
use crate::local::LocalHost;
use crate::mmio::Control;
use crate::time::Clock;
use hypertrace_abi::atomic::{AtomicU64, Ordering};
use hypertrace_abi::clock::{Reason, in_ticks};
use hypertrace_abi::config::{CONFIG_WORDS, ConfigPage, Features, RingMode};
use hypertrace_abi::drain::PAUSE;
use hypertrace_abi::layout::{Geometry, Region, WORD, host_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::ClientMemory;
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_segment::LocalPages;

/// A device, or shared memory that takes its place.
#[derive(Clone, Copy, Debug)]
pub struct Channel<'m> {
    pub(crate) rings: &'m [AtomicU64],
    pub(crate) data: &'m [AtomicU64],
    /// Clients' registers. `None` for bare rings.
    pub(crate) control: Option<Control>,
    /// Host of a segment. `None` for a device and for bare rings.
    pub(crate) local: Option<LocalHost>,
    pub(crate) geometry: Geometry,
    pub(crate) mode: RingMode,
    pub(crate) features: Features,
    pub(crate) guest_frequency: u64,
    vcpu_clients: u32,
    trace_parent: Option<TraceParent>,
    pub(crate) fenced: bool,
    pub(crate) clock: Clock,
    /// Reason for the choice of `clock`.
    pub(crate) reason: Reason,
    /// True if a kernel module lends clients. Pages that all clients share are then read-only or out of
    /// reach.
    pub(crate) is_lent: bool,
}

impl Channel<'static> {
    /// Makes a channel of the device in the MMIO window at this address, or of the
    /// segment that is mapped there.
    ///
    /// # Errors
    /// If there is no device or segment.
    ///
    /// # Safety
    /// The window of a device or segment, or at least a readable page, is mapped at `base`, writable, and
    /// never unmapped.
    pub unsafe fn at_window(base: *mut u8) -> Result<Self, OpenError> {
        // SAFETY: the caller promises that the window is mapped; the config region is at the window's start.
        unsafe { Channel::in_window(&read_config(base), base) }
    }

    /// Makes a channel of the window or segment at `base`. `page` is a checked copy of the config page. This
    /// function does not read the page itself, because a program may have changed the page since the check.
    ///
    /// # Safety
    /// All regions that `page` describes are mapped at `base`, writable, and never
    /// unmapped.
    pub(crate) unsafe fn in_window(page: &ConfigPage, base: *mut u8) -> Result<Self, OpenError> {
        let geometry = page.geometry()?;
        let at = |region| base.wrapping_add(geometry.window_offset(region) as usize);
        // SAFETY: the window holds all regions at these offsets.
        unsafe {
            let channel = Channel::at_regions(
                page,
                at(Region::Data),
                at(Region::Control),
                at(Region::Rings),
            )?;
            let local = (!channel.traps()).then(|| LocalHost {
                pages: LocalPages::at(base),
                #[cfg(feature = "std")]
                end_mark: page.end_mark(),
                #[cfg(feature = "std")]
                is_remote: channel.features.contains(Features::REMOTE),
            });
            Ok(Channel { local, ..channel })
        }
    }

    /// Makes a channel of the PCI function whose BARs 0, 1, 2 and 4 are mapped at
    /// these addresses.
    ///
    /// # Errors
    /// If the function is not a hypertrace device.
    ///
    /// # Safety
    /// The BARs are mapped at these addresses, writable but for BAR 0, and never unmapped.
    pub unsafe fn at_bars(
        bar0: *mut u8,
        bar1: *mut u8,
        bar2: *mut u8,
        bar4: *mut u8,
    ) -> Result<Self, OpenError> {
        // SAFETY: the caller's promise.
        unsafe { Channel::at_regions(&read_config(bar0), bar1, bar2, bar4) }
    }

    /// # Safety
    /// The regions that `page` describes are mapped at these addresses, and never unmapped.
    pub(crate) unsafe fn at_regions(
        page: &ConfigPage,
        data: *mut u8,
        control: *mut u8,
        rings: *mut u8,
    ) -> Result<Self, OpenError> {
        let geometry = page.geometry()?;
        // SAFETY: the caller promises that the regions are mapped, and `geometry` has checked all offsets.
        unsafe {
            let control = Control::new(control, &geometry);
            let data = words(data, geometry.data_size());
            let rings = words(rings, geometry.rings_size());
            Channel::new(page, data, rings, Some(control))
        }
    }
}

impl<'m> Channel<'m> {
    /// Makes a channel of bare rings, whose host only drains them. A reference point on this channel is a
    /// commit, which the host does not answer.
    ///
    /// # Errors
    /// If `page` is not a valid config page, or `rings` is shorter than `page` says.
    pub fn local(page: &ConfigPage, rings: &'m [AtomicU64]) -> Result<Self, OpenError> {
        Channel::new(page, &[], rings, None)
    }

    fn new(
        page: &ConfigPage,
        data: &'m [AtomicU64],
        rings: &'m [AtomicU64],
        control: Option<Control>,
    ) -> Result<Self, OpenError> {
        let geometry = page.geometry()?;
        if (rings.len() as u64) < geometry.rings_size() / WORD {
            return Err(OpenError::Short);
        }
        Ok(Channel {
            rings,
            data,
            control,
            local: None,
            geometry,
            mode: page.ring_mode()?,
            features: page.features(),
            guest_frequency: page.guest_frequency,
            vcpu_clients: u32::try_from(page.vcpu_clients)
                .map_or(geometry.clients, |n| n.min(geometry.clients)),
            trace_parent: page.trace_parent(),
            fenced: false,
            clock: Clock::default(),
            reason: Reason::Unknown,
            is_lent: false,
        })
    }

    /// Sets whether stores need fences to stay in order. Stores need no fences only if the rings' mapping is
    /// known to be write-back.
    pub fn with_fences(self, fenced: bool) -> Self {
        Channel { fenced, ..self }
    }

    /// Sets the clock that stamps the channel's events.
    pub fn with_clock(self, clock: Clock) -> Self {
        self.with_clock_because(clock, Reason::Named)
    }

    /// Sets the clock that stamps the channel's events, and the reason for this clock. Each lease tells the
    /// host the reason.
    pub(crate) fn with_clock_because(self, clock: Clock, reason: Reason) -> Self {
        Channel { clock, reason, ..self }
    }

    /// Restricts the channel to what a kernel module lends.
    #[cfg(feature = "std")]
    pub(crate) fn lent(self) -> Self {
        Channel { is_lent: true, ..self }
    }

    /// Returns how many clients the device has.
    pub fn clients(&self) -> u32 {
        self.geometry.clients
    }

    /// Returns the clients that may be leased. Clients with lower numbers belong to vCPUs.
    pub fn leasable(&self) -> core::ops::Range<u32> {
        self.vcpu_clients..self.geometry.clients
    }

    /// Returns true if stores to registers trap: the host handles them immediately.
    pub fn traps(&self) -> bool {
        self.control.is_some() && self.features.contains(Features::TRAPS)
    }

    /// Returns true if the host may stop looking at rings until a KICK.
    pub(crate) fn needs_kicks(&self) -> bool {
        self.traps() && self.features.contains(Features::KICK)
    }

    /// Returns a pause in ticks. If the time between two events is longer than this pause, the second event
    /// wakes the host.
    pub(crate) fn pause(&self) -> u64 {
        let frequency = match self.clock.kind() {
            ClockKind::Tsc => self.guest_frequency,
            ClockKind::MonotonicRaw => 1_000_000_000,
        };
        in_ticks(PAUSE, frequency)
    }

    /// Returns the ticks per second of the counter, 0 if the host does not know.
    pub fn frequency(&self) -> u64 {
        self.guest_frequency
    }

    /// Returns the span during which the host records, if the host names one.
    pub fn trace_parent(&self) -> Option<TraceParent> {
        self.trace_parent
    }

    /// Returns the version of the enable mask from this client's page H.
    pub(crate) fn mask_version(memory: &ClientMemory<'_>) -> u64 {
        // ORDERING: pairs with the Release store after the mask was written.
        memory.host[host_page::MASK_VERSION].load(Ordering::Acquire)
    }

    pub(crate) fn memory(&self, client: u32) -> Result<ClientMemory<'m>, OpenError> {
        ClientMemory::of_rings(self.rings, client, &self.geometry, self.mode)
            .ok_or(OpenError::Client(client, self.geometry.clients))
    }
}

/// Copies the config page, loading each word once. The caller checks and uses the copy alone.
///
/// # Safety
/// A readable page is mapped at `at`.
pub(crate) unsafe fn read_config(at: *const u8) -> ConfigPage {
    let mut words = [0; CONFIG_WORDS];
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: the loads are inside the page. Each load takes a word, because the page may trap.
        *word = unsafe { at.cast::<u64>().wrapping_add(i).read_volatile() };
    }
    ConfigPage::from_words(&words)
}

/// # Safety
/// `bytes` bytes are mapped at `at`, aligned, and never unmapped.
unsafe fn words(at: *mut u8, bytes: u64) -> &'static [AtomicU64] {
    // SAFETY: the caller promises the mapping, and this side accesses shared memory with atomic operations
    // only.
    unsafe { core::slice::from_raw_parts(at.cast(), (bytes / WORD) as usize) }
}
