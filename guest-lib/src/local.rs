//! The host of a segment, where no store traps: clients ring a bell and wait for the reply.

use crate::counts;
#[cfg(feature = "std")]
use crate::os;
#[cfg(not(feature = "std"))]
use crate::time::MAX_TURNS;
use hypertrace_abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed, fence};
#[cfg(feature = "std")]
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::layout::host_page;
use hypertrace_abi::layout::local::{State, watch};
use hypertrace_abi::ring::ClientMemory;
use hypertrace_abi::slot;
use hypertrace_segment::LocalPages;

/// Number of looks at the reply before the thread sleeps. The looks take some microseconds. A host that is
/// awake on another CPU answers within this time.
const SPINS: u32 = 200;

/// Time in nanoseconds after which a thread that sleeps on the reply rings once more.
#[cfg(feature = "std")]
const RING_AGAIN: u64 = 10_000_000;

/// The host of a segment, as a client sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalHost {
    pub(crate) pages: LocalPages<'static>,
    /// Value of the word `END` once the host has ended.
    #[cfg(feature = "std")]
    pub(crate) end_mark: u64,
    /// True if the host has another kernel, and cannot wake a thread that waits for it.
    #[cfg(feature = "std")]
    pub(crate) is_remote: bool,
}

/// Value of [`LocalHost::sign_of_life`] after a second without an answer. Until the sign changes, no thread
/// waits for the host.
static DEAD: AtomicU64 = AtomicU64::new(0);

impl LocalHost {
    /// Returns a number that changes at every beat of the host; never 0.
    fn sign_of_life(&self) -> u64 {
        let beat = self.pages.beat();
        let place = (beat.as_ptr() as u64).rotate_left(17);
        (beat.load(Relaxed).wrapping_add(1) ^ place).max(1)
    }

    /// Returns true if the host has ended. The function also returns true if the host did not answer and has
    /// shown no sign of life since then.
    pub(crate) fn is_dead(&self) -> bool {
        self.pages.state().load(Relaxed) == State::Ended as u32
            || DEAD.load(Relaxed) == self.sign_of_life()
    }

    /// Returns true if the host has ended. The host has then taken its last records.
    #[cfg(feature = "std")]
    pub(crate) fn has_ended(&self) -> bool {
        // ORDERING: pairs with the host's Release store: the host's last positions are in page H by then.
        self.pages.end().load(Ordering::Acquire) == self.end_mark
    }

    /// Notes that a thread has waited for the host without an answer.
    pub(crate) fn give_up(&self) {
        DEAD.store(self.sign_of_life(), Relaxed);
    }

    /// Asks the host to serve the reference point that this client stored to EMIT, and waits for the reply
    /// for a bounded time. If there is no reply, counts the point.
    pub(crate) fn ask(&self, client: u32, memory: &ClientMemory<'_>, cpu: u32, seq: u32) {
        let answered = !self.is_dead() && {
            slot::ask(memory, cpu, seq);
            // ORDERING: pairs with the host's fence. This fence stands between the host's store to its word
            // and the host's last look at the slot. At least one of the two sides sees the other side's
            // store.
            fence(Ordering::SeqCst);
            if self.pages.watch().load(Relaxed) != watch::CLIENT + client {
                self.pages.ring(client);
            }
            self.wait(client, memory, seq)
        };
        if !answered {
            counts::add(&counts::UNANSWERED);
        }
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
            // ORDERING: pairs with the host's fence. This fence stands between the host's store of the reply
            // and the host's look at this word. At least one of the two sides sees the other side's store.
            fence(Ordering::SeqCst);
            let begin = os::nanoseconds();
            for until in [begin + RING_AGAIN, begin + 1_000_000_000] {
                while self.pages.state().load(Relaxed) != State::Ended as u32 {
                    let found = reply.load(Relaxed) as u32;
                    if found == seq || !os::sleep(reply, found, (begin, until), self.is_remote) {
                        break;
                    }
                }
                if has_come() {
                    break;
                }
                // Rings again, because the bell may have wrapped around to the value that the host last saw.
                self.pages.ring(client);
            }
            sleeps.store(0, Relaxed);
        }
        #[cfg(not(feature = "std"))]
        for turn in 0..MAX_TURNS {
            if has_come() {
                break;
            }
            if turn == MAX_TURNS / 100 {
                self.pages.ring(client);
            }
            core::hint::spin_loop();
        }
        if !has_come() {
            self.give_up();
        }
        has_come()
    }
}
