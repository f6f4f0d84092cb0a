// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reference points on the host's side: the host reads the slot, once, and replies.

use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, fence};
use crate::config::RingMode;
use crate::layout::{Geometry, MASK_BYTES, SLOT_HEADER_WORDS, SLOT_WORDS, guest_page, host_page};
use crate::record::id;
use crate::ring::{ClientMemory, mask_words};
use crate::sink::{ReferencePoint, Status};

/// A store to EMIT.
#[derive(Clone, Copy, Debug)]
pub struct Emitted {
    /// Client to whose register the guest stored.
    pub client: u32,
    /// Sequence number of the point: the low half of the stored value.
    pub seq: u32,
    /// The host's raw counter when the store arrived.
    pub host_time: u64,
}

/// Contents of a reply, except for its sequence number and time.
#[derive(Clone, Copy, Debug)]
pub struct ReplyBody {
    /// Outcome of the reference point.
    pub status: Status,
    /// Clock epoch.
    pub epoch: u64,
}

/// Clock epoch, which each reply contains, and version of the enable mask.
#[derive(Debug, Default)]
pub struct Versions {
    /// Clock epoch.
    pub epoch: AtomicU64,
    /// Version of the enable mask.
    pub mask: AtomicU64,
}

impl Versions {
    /// Begins another generation. Calls `begin` with the lowest epoch that the generation can have. `begin`
    /// calls the sink, and returns the generation's epoch.
    pub fn begin_generation(&self, begin: impl FnOnce(u32) -> u32) {
        let least = u32::try_from(self.epoch.load(Relaxed) + 1).unwrap_or(u32::MAX);
        self.epoch.store(begin(least).into(), Relaxed);
    }

    /// Replaces the enable mask in BAR 4, one byte per slot: 0 is on, 1 is off. Then shows the mask's new
    /// version to every client, which copies the mask. Only one thread may call this at a time.
    pub fn set_mask(
        &self,
        rings: &[AtomicU64],
        geometry: &Geometry,
        mode: RingMode,
        mask: &[u8; MASK_BYTES as usize],
    ) {
        let version = self.mask.load(Relaxed) + 1;
        let words = mask_words(rings).unwrap_or_default();
        for (word, bytes) in words.iter().zip(mask.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        for client in 0..geometry.clients {
            if let Some(memory) = ClientMemory::of_rings(rings, client, geometry, mode) {
                // ORDERING: pairs with the Acquire load of a guest, which then copies the mask.
                memory.host[host_page::MASK_VERSION].store(version, Ordering::Release);
            }
        }
        self.mask.store(version, Relaxed);
    }
}

/// Why a slot is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSlot {
    /// The slot's `seq` is not the value that was stored to EMIT.
    Sequence,
    /// The slot claims more payload words than a slot has.
    Words,
    /// The event id is reserved.
    Id,
}

/// Asks the host to serve the point in the client's slot of a segment. `cpu` is the CPU that made the point,
/// `seq` the slot's sequence number, nonzero. An awake host polls only the last of the stored words. This
/// word is in the slot's own cache line.
#[inline(always)]
pub fn ask(memory: &ClientMemory<'_>, cpu: u32, seq: u32) {
    let [.., who, _, len] = &memory.guest[guest_page::SLOT..=guest_page::SLOT_LEN] else {
        return;
    };
    who.store(u64::from(who.load(Relaxed) as u32) | u64::from(cpu) << 32, Relaxed);
    let words = u64::from(len.load(Relaxed) as u16);
    // ORDERING: pairs with the Acquire in `asked`: the slot is complete.
    len.store(words | u64::from(seq) << 32, Ordering::Release);
}

/// Returns the `seq` of the point that the client asks the host to serve, or `None` if the client asks for no
/// point or the host has replied.
#[inline(always)]
pub fn asked(memory: &ClientMemory<'_>) -> Option<u32> {
    // ORDERING: pairs with the Release in `ask`.
    let len = memory.guest[guest_page::SLOT_LEN].load(Ordering::Acquire);
    let seq = (len >> 32) as u32;
    let answered = memory.host[host_page::REPLY].load(Relaxed) as u32;
    (seq != 0 && seq != answered).then_some(seq)
}

/// Copies the header of the emitted slot in page G, once. Returns a point without words, and the words of the
/// slot, which the caller copies.
///
/// # Errors
/// If the header is malformed. The error names the check that failed.
#[inline(always)]
pub fn read<'m>(
    page: &'m [AtomicU64],
    emitted: &Emitted,
) -> Result<(ReferencePoint<'static>, &'m [AtomicU64]), BadSlot> {
    let slot = &page[guest_page::SLOT..][..SLOT_HEADER_WORDS + SLOT_WORDS];
    let header: [u64; SLOT_HEADER_WORDS] = core::array::from_fn(|i| slot[i].load(Relaxed));
    let words = usize::from(header[3] as u16);
    let id = (header[0] >> 32) as u32;
    if header[0] as u32 != emitted.seq {
        return Err(BadSlot::Sequence);
    }
    if words > SLOT_WORDS {
        return Err(BadSlot::Words);
    }
    if id < id::FIRST {
        return Err(BadSlot::Id);
    }
    let point = ReferencePoint {
        client: emitted.client,
        seq: emitted.seq,
        id,
        name_hash: header[1] as u32,
        cpu: (header[1] >> 32) as u32,
        guest_time: header[2],
        host_time: emitted.host_time,
        words: &[],
    };
    Ok((point, &slot[SLOT_HEADER_WORDS..][..words]))
}

/// Writes the reply to an emitted point to page H.
#[inline(always)]
pub fn reply(page: &[AtomicU64], emitted: &Emitted, answer: ReplyBody) {
    page[host_page::REPLY_HOST_TIME].store(emitted.host_time, Relaxed);
    page[host_page::REPLY_EPOCH].store(answer.epoch, Relaxed);
    let status = u64::from(emitted.seq) | (answer.status as u64) << 32;
    // ORDERING: pairs with the Acquire load of the guest that waits for its
    // seq: the rest of the reply is complete.
    page[host_page::REPLY].store(status, Ordering::Release);
}

/// Serves a reference point on the thread that sees the store: copies the slot once, calls `record` with the
/// copy, and replies. Takes no lock and allocates nothing.
///
/// `record` is also called for a malformed slot. `record` counts a malformed slot and answers with
/// [`Status::Invalid`].
#[inline]
pub fn serve(
    memory: &ClientMemory<'_>,
    emitted: Emitted,
    versions: &Versions,
    record: impl FnOnce(Result<&ReferencePoint<'_>, BadSlot>) -> Status,
) {
    // Most events are short, and zeroing 2 KiB would cost as much as all the rest.
    let status = match read(memory.guest, &emitted) {
        Err(bad) => record(Err(bad)),
        Ok((point, words)) if words.len() <= 16 => copied::<16>(memory, point, words, record),
        Ok((point, words)) => copied::<SLOT_WORDS>(memory, point, words, record),
    };
    reply(memory.host, &emitted, ReplyBody { status, epoch: versions.epoch.load(Relaxed) });
}

#[inline(always)]
fn copied<const N: usize>(
    memory: &ClientMemory<'_>,
    point: ReferencePoint<'_>,
    slot: &[AtomicU64],
    record: impl FnOnce(Result<&ReferencePoint<'_>, BadSlot>) -> Status,
) -> Status {
    let mut words = [0; N];
    copy(&mut words, slot);
    // ORDERING: pairs with the Release fence in `Producer::slot`. A guest need not wait for the reply, and
    // may already have begun to write the next point. In this case, the `seq` loaded below has changed, so
    // the words are never a mixture of two points.
    fence(Ordering::Acquire);
    if memory.guest[guest_page::SLOT].load(Relaxed) as u32 != point.seq {
        return record(Err(BadSlot::Sequence));
    }
    record(Ok(&ReferencePoint { words: &words[..slot.len()], ..point }))
}

/// Copies a guest's words. Loads each word once.
#[inline]
pub fn copy(to: &mut [u64], from: &[AtomicU64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.load(Relaxed);
    }
}
