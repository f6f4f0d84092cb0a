//! What a segment has beside a device's regions: the host's page, and the bells
//! that do what traps do.
//!
//! Unsafe, because that is memory at an address that somebody told us.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
#[cfg(feature = "std")]
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::layout::host_page;
#[cfg(feature = "std")]
use hypertrace_abi::layout::local::LOST_UNATTACHED;
use hypertrace_abi::layout::local::{BEAT, BELLS, PAGE_L, STATE, State, WATCH, watch};
use hypertrace_abi::ring::ClientMemory;
use hypertrace_abi::slot;

/// Looks at the reply before the thread sleeps: some microseconds, which is
/// what a host takes that is awake on another CPU.
const SPINS: u32 = 200;

/// Nanoseconds until a thread that sleeps on the reply rings once more.
#[cfg(feature = "std")]
const RING_AGAIN: u64 = 10_000_000;

/// A segment's config region, mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    config: *mut u8,
}

// SAFETY: all words behind it are accessed by atomic operations only.
unsafe impl Send for Local {}
// SAFETY: as above.
unsafe impl Sync for Local {}

/// The host that did not answer for a second, as [`Local::sign_of_life`] showed
/// it then: until that changes, nobody waits for it again.
static DEAD: AtomicU64 = AtomicU64::new(0);

impl Local {
    /// # Safety
    /// A segment's config region is mapped at `config`, writable, for as long
    /// as the result is used.
    pub(crate) unsafe fn new(config: *mut u8) -> Local {
        Local { config }
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `new`'s promise; an aligned word of page L.
        unsafe { &*self.config.wrapping_add((PAGE_L + offset) as usize).cast() }
    }

    /// Has the host look at this client's registers when it looks next.
    pub(crate) fn tell(&self, client: u32) {
        // SAFETY: `new`'s promise; the client was checked against the
        // geometry, whose bells lie inside the region.
        let bell = unsafe {
            core::sync::atomic::AtomicU8::from_ptr(
                self.config.wrapping_add(BELLS as usize + client as usize),
            )
        };
        // ORDERING: pairs with the host's Acquire load: the registers are
        // stored.
        bell.store(bell.load(Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Has the host look at this client's registers, now.
    pub(crate) fn ring(&self, client: u32) {
        self.tell(client);
        // ORDERING: pairs with the host's fence between its word and its look
        // at the bells: one of the two sees what the other did.
        fence(Ordering::SeqCst);
        let watches = self.word(WATCH);
        // A host that is about to sleep does not.
        if watches.load(Relaxed) == watch::ASLEEP
            && watches.compare_exchange(watch::ASLEEP, watch::BELLS, Relaxed, Relaxed).is_ok()
        {
            #[cfg(feature = "std")]
            crate::linux::wake(watches);
        }
    }

    /// Tells the host of events that were lost in a process which holds no
    /// client. Other processes do the same to this word.
    #[cfg(feature = "std")]
    pub(crate) fn tell_unattached(&self, events: u64) {
        // SAFETY: `new`'s promise; an aligned word of page L.
        let total: &AtomicU64 =
            unsafe { &*self.config.wrapping_add((PAGE_L + LOST_UNATTACHED) as usize).cast() };
        total.fetch_add(events, Relaxed);
    }

    /// Never 0, and another at every beat of the host's heart.
    fn sign_of_life(&self) -> u64 {
        // SAFETY: `new`'s promise; an aligned word of page L.
        let beat: &AtomicU64 =
            unsafe { &*self.config.wrapping_add((PAGE_L + BEAT) as usize).cast() };
        let place = (self.config as u64).rotate_left(17);
        (beat.load(Relaxed).wrapping_add(1) ^ place).max(1)
    }

    /// Whether the host has ended, or did not answer and shows no sign of life
    /// since.
    pub(crate) fn is_dead(&self) -> bool {
        self.word(STATE).load(Relaxed) == State::Ended as u32
            || DEAD.load(Relaxed) == self.sign_of_life()
    }

    /// Somebody has waited in vain.
    pub(crate) fn give_up(&self) {
        DEAD.store(self.sign_of_life(), Relaxed);
    }

    /// Has the host serve the reference point that this client stored to EMIT,
    /// and waits, bounded, for its reply. Without one, that is counted.
    pub(crate) fn ask(&self, client: u32, memory: &ClientMemory<'_>, cpu: u32, seq: u32) {
        let answered = !self.is_dead() && {
            slot::ask(memory, cpu, seq);
            // ORDERING: pairs with the host's fence between its word and its
            // last look at the slot: one of the two sees what the other did.
            fence(Ordering::SeqCst);
            if self.word(WATCH).load(Relaxed) != watch::CLIENT + client {
                self.ring(client);
            }
            self.wait(client, memory, seq)
        };
        #[cfg(feature = "std")]
        if !answered {
            crate::linux::unanswered();
        }
        let _ = answered;
    }

    fn wait(&self, client: u32, memory: &ClientMemory<'_>, seq: u32) -> bool {
        let reply = &memory.host[host_page::REPLY];
        // ORDERING: pairs with the Release store of the reply's last word.
        let has_come = || reply.load(Ordering::Acquire) as u32 == seq;
        for _ in 0..SPINS {
            if has_come() {
                return true;
            }
            core::hint::spin_loop();
        }
        #[cfg(feature = "std")]
        {
            let sleeps = &memory.guest[guest_page::SLEEPS];
            sleeps.store(1, Relaxed);
            // ORDERING: pairs with the host's fence between its reply and its
            // look at this word: one of the two sees what the other did.
            fence(Ordering::SeqCst);
            // SAFETY: the low half of the reply's word, where a little-endian
            // machine has its seq.
            let word = unsafe { AtomicU32::from_ptr(reply.as_ptr().cast()) };
            let begin = crate::linux::nanoseconds();
            for until in [begin + RING_AGAIN, begin + 1_000_000_000] {
                while self.word(STATE).load(Relaxed) != State::Ended as u32 {
                    let found = word.load(Relaxed);
                    if found == seq || !crate::linux::sleep(word, found, until) {
                        break;
                    }
                }
                if has_come() {
                    break;
                }
                // Its bell may have come around to where the host last saw it.
                self.ring(client);
            }
            sleeps.store(0, Relaxed);
        }
        #[cfg(not(feature = "std"))]
        for turn in 0..crate::client::MOST_TURNS {
            if has_come() {
                break;
            }
            if turn == crate::client::MOST_TURNS / 100 {
                self.ring(client);
            }
            core::hint::spin_loop();
        }
        if !has_come() {
            self.give_up();
        }
        has_come()
    }
}
