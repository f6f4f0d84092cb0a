//! The two pages that a segment has and a device does not: page L, which shows the host's state, and the
//! bells, which replace a device's traps.
//!
//! The code is unsafe because this module reaches one 32-bit half of a 64-bit word, and knows some mappings
//! by their addresses alone.
#![allow(unsafe_code)]

use hypertrace_abi::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
use hypertrace_abi::layout::local::{
    BEAT, BEGAN, BELLS, BOOT, BOOT_SEEN, END, HOST_PID, LOST_UNATTACHED, PAGE_L, STATE, State,
    TRIGGERS, TRIGGERS_BYTES, WATCH, watch,
};
use hypertrace_abi::layout::{PAGE, WORD};
use hypertrace_abi::ring::Wake;
use hypertrace_abi::sink::NameSet;

/// Number of words in page L and in the page with the bells, which follows page L.
const WORDS: usize = (2 * PAGE / WORD) as usize;
const _: () = assert!(BELLS == PAGE_L + PAGE);

/// Page L and the bells of a segment. All sides access a word in one size: 64 bits for the bells and for the
/// words of page L that are a `u64`, and 32 bits for the other words.
#[derive(Clone, Copy, Debug)]
pub struct LocalPages<'m>(&'m [AtomicU64; WORDS]);

impl<'m> LocalPages<'m> {
    /// Finds the pages in a segment that is mapped at this address.
    ///
    /// # Safety
    /// The config region of a segment must be mapped at the address, and must stay mapped and writable for
    /// `'m`.
    pub unsafe fn at(segment: *mut u8) -> LocalPages<'m> {
        // SAFETY: the caller promises the mapping. The config region is larger than these pages, and aligned
        // as pages are. All sides access shared memory with atomic operations only.
        LocalPages(unsafe { &*segment.wrapping_add(PAGE_L as usize).cast() })
    }

    /// Finds the pages among the words of a segment. Returns `None` if there are too few words.
    pub fn of(segment: &'m [AtomicU64]) -> Option<LocalPages<'m>> {
        segment.get((PAGE_L / WORD) as usize..)?.first_chunk().map(LocalPages)
    }

    #[inline(always)]
    fn word(self, offset: u64) -> &'m AtomicU64 {
        &self.0[(offset / WORD) as usize]
    }

    /// Returns a word of 32 bits. The other half of the word's 64 bits is another word of 32 bits, or unused.
    #[inline(always)]
    fn half(self, offset: u64) -> &'m AtomicU32 {
        let word = self.word(offset).as_ptr().cast::<u32>();
        // SAFETY: the pointer leads to one half of an aligned word, which lives as long as the result. All
        // sides access this half only as a word of 32 bits.
        unsafe { AtomicU32::from_ptr(word.add((offset % WORD / 4) as usize)) }
    }

    /// Returns the futex that shows what the host polls now. The values are in [`watch`].
    #[inline(always)]
    pub fn watch(self) -> &'m AtomicU32 {
        self.half(WATCH)
    }

    /// Returns the word of the host's [`State`].
    #[inline(always)]
    pub fn state(self) -> &'m AtomicU32 {
        self.half(STATE)
    }

    /// Returns the word of the host's process id.
    pub fn host_pid(self) -> &'m AtomicU32 {
        self.half(HOST_PID)
    }

    /// Returns the number of passes of the host's loop.
    pub fn beat(self) -> &'m AtomicU64 {
        self.word(BEAT)
    }

    /// Returns the word with the value that the host's raw counter had when the host began.
    pub fn began(self) -> &'m AtomicU64 {
        self.word(BEGAN)
    }

    /// Returns the running total of events that were lost in processes which hold no client.
    pub fn lost_unattached(self) -> &'m AtomicU64 {
        self.word(LOST_UNATTACHED)
    }

    /// Returns the number of the guest's boot, which the guest writes.
    pub fn boot(self) -> &'m AtomicU64 {
        self.word(BOOT)
    }

    /// Returns the number of the boot whose records the host takes.
    pub fn boot_seen(self) -> &'m AtomicU64 {
        self.word(BOOT_SEEN)
    }

    /// Returns the set of names whose points the host has to handle itself.
    pub fn triggers(self) -> &'m [AtomicU64] {
        &self.0[(TRIGGERS / WORD) as usize..][..(TRIGGERS_BYTES / WORD) as usize]
    }

    /// Returns the bells of `clients` clients, at most 1,024: each bell is a byte, and each word has eight
    /// bells.
    pub fn bells(self, clients: u32) -> &'m [AtomicU64] {
        let bells = &self.0[(PAGE / WORD) as usize..];
        &bells[..bells.len().min(clients.div_ceil(WORD as u32) as usize)]
    }

    /// Returns true if a host takes the recorded events.
    #[inline(always)]
    pub fn is_served(self) -> bool {
        self.state().load(Relaxed) == State::Serving as u32
    }

    /// Returns the word that gets the config page's end mark when the host has taken its last record.
    pub fn end(self) -> &'m AtomicU64 {
        self.word(END)
    }

    /// Returns true if the host has to handle points of this name itself.
    #[inline(always)]
    pub fn has_triggers(self, name_hash: u32) -> bool {
        let (word, bit) = NameSet::place(name_hash);
        self.word(TRIGGERS + word as u64 * WORD).load(Relaxed) & bit != 0
    }

    /// Adds 1 to a client's bell, so that the host reads the client's registers at its next look. A bell that
    /// wraps around carries 1 into the next client's bell, which then rings without need.
    ///
    /// # Panics
    /// If no segment has a client of this number.
    pub fn notify(self, client: u32) {
        let client = u64::from(client);
        // ORDERING: pairs with the host's Acquire load: a host that sees the bell sees the client's
        // registers.
        self.word(PAGE + client).fetch_add(1 << (client % WORD * 8), Ordering::Release);
    }

    /// Rings a client's bell as [`LocalPages::notify`] does, and wakes the host if it sleeps.
    ///
    /// # Panics
    /// As [`LocalPages::notify`].
    pub fn ring(self, client: u32) {
        self.notify(client);
        // ORDERING: pairs with the host's fence between the host's store to its word and its look at the
        // bells: the host sees the bell, or this thread sees the word.
        fence(Ordering::SeqCst);
        let watches = self.watch();
        // If the host is about to sleep, the new value of the word keeps the host awake.
        if watches.load(Relaxed) == watch::ASLEEP
            && watches.compare_exchange(watch::ASLEEP, watch::BELLS, Relaxed, Relaxed).is_ok()
        {
            #[cfg(feature = "std")]
            crate::futex::wake(watches, 1);
        }
    }
}

/// A client's bell, which wakes a sleeping host when the client's ring fills.
#[derive(Clone, Copy, Debug)]
pub struct Bell<'m> {
    pages: LocalPages<'m>,
    client: u32,
}

impl<'m> Bell<'m> {
    /// Makes the bell of a client, which the segment of these pages must have.
    pub fn new(pages: LocalPages<'m>, client: u32) -> Bell<'m> {
        Bell { pages, client }
    }
}

impl Wake for Bell<'_> {
    fn wake(&self) {
        self.pages.ring(self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> Box<[AtomicU64; WORDS]> {
        Box::new([const { AtomicU64::new(0) }; WORDS])
    }

    #[test]
    fn a_bell_counts_in_its_own_byte() {
        let words = pages();
        let pages = LocalPages(&words);
        for (client, times) in [(0, 3), (7, 2), (9, 255), (1023, 1)] {
            (0..times).for_each(|_| pages.ring(client));
        }
        let bells: Vec<u8> =
            pages.bells(1024).iter().flat_map(|bell| bell.load(Relaxed).to_le_bytes()).collect();
        let rung: Vec<(usize, u8)> =
            bells.into_iter().enumerate().filter(|(_, bell)| *bell != 0).collect();
        assert_eq!(rung, [(0, 3), (7, 2), (9, 255), (1023, 1)]);
        assert_eq!((pages.bells(9).len(), pages.bells(16).len()), (2, 2));
    }

    #[test]
    fn bells_of_one_word_that_ring_at_the_same_time_are_all_heard() {
        let words = pages();
        let pages = LocalPages(&words);
        std::thread::scope(|scope| {
            for client in 0..8 {
                scope.spawn(move || (0..100).for_each(|_| pages.notify(client)));
            }
        });
        assert_eq!(pages.bells(8)[0].load(Relaxed).to_le_bytes(), [100; 8]);
    }

    #[test]
    fn a_ring_wakes_a_host_that_sleeps_and_no_other() {
        let words = pages();
        let pages = LocalPages(&words);
        for (before, after) in [
            (watch::ASLEEP, watch::BELLS),
            (watch::BELLS, watch::BELLS),
            (watch::CLIENT, watch::CLIENT),
        ] {
            pages.watch().store(before, Relaxed);
            pages.ring(1);
            assert_eq!(pages.watch().load(Relaxed), after);
        }
    }

    #[test]
    fn words_of_32_bits_are_halves_of_their_own() {
        let words = pages();
        let pages = LocalPages(&words);
        pages.state().store(State::Serving as u32, Relaxed);
        pages.host_pid().store(7, Relaxed);
        assert!(pages.is_served());
        assert_eq!(words[(STATE / WORD) as usize].load(Relaxed), 7 << 32 | 1);
    }

    #[test]
    fn a_name_is_looked_up_where_the_host_has_put_it() {
        let words = pages();
        let pages = LocalPages(&words);
        let mut names = NameSet::EMPTY;
        names.set(0x1234_5678);
        for (word, bits) in pages.triggers().iter().zip(names.0) {
            word.store(bits, Relaxed);
        }
        assert!(pages.has_triggers(0x1234_5678) && pages.has_triggers(0x678));
        assert!(!pages.has_triggers(0x679));
    }
}
