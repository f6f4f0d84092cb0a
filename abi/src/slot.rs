//! The host's side of a reference point: the v2 slot, copied once, and the
//! reply.

use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, fence};
use crate::layout::{SLOT_HEADER_WORDS, SLOT_WORDS, guest_page, host_page};
use crate::record::id;
use crate::ring::ClientMemory;
use crate::sink::{ReferencePoint, Status};

/// What a client stored to EMIT, and when.
#[derive(Clone, Copy, Debug)]
pub struct Emitted {
    /// Whose register.
    pub client: u32,
    /// The low half of the value: the slot's number.
    pub seq: u32,
    /// The host's raw counter at entry.
    pub host_time: u64,
}

/// What is replied to it, beside its number and time.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// What became of it.
    pub status: Status,
    /// The clock epoch.
    pub epoch: u64,
    /// The enable mask's version.
    pub mask_version: u64,
}

/// Why a slot is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSlot {
    /// Its number is not what was stored to EMIT.
    Sequence,
    /// It has more words than a slot.
    Words,
    /// An id that no event has.
    Id,
}

/// Over a segment: asks the host to serve the point in the slot, made on this
/// CPU, whose number, nonzero, this is. The last is the one store that an awake
/// host waits for, on the slot's own cache line.
#[inline(always)]
pub fn ask(memory: &ClientMemory<'_>, cpu: u32, seq: u32) {
    let [.., who, _, len] = &memory.guest[guest_page::SLOT..=guest_page::SLOT_LEN] else {
        return;
    };
    who.store(u64::from(who.load(Relaxed) as u32) | u64::from(cpu) << 32, Relaxed);
    let words = u64::from(len.load(Relaxed) as u16);
    // ORDERING: pairs with the Acquire in `asked`: the slot is there.
    len.store(words | u64::from(seq) << 32, Ordering::Release);
}

/// What the client asks the host to serve, if there has been no reply to that.
#[inline(always)]
pub fn asked(memory: &ClientMemory<'_>) -> Option<u32> {
    // ORDERING: pairs with the Release in `ask`.
    let len = memory.guest[guest_page::SLOT_LEN].load(Ordering::Acquire);
    let seq = (len >> 32) as u32;
    let answered = memory.host[host_page::REPLY].load(Relaxed) as u32;
    (seq != 0 && seq != answered).then_some(seq)
}

/// Looks at the slot in page G of what was emitted: its header, copied once, as a
/// point whose words are yet to be copied from the second part.
///
/// # Errors
/// What is wrong with it.
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

/// Answers what was emitted, in page H.
#[inline(always)]
pub fn reply(page: &[AtomicU64], emitted: &Emitted, answer: Answer) {
    page[host_page::REPLY_HOST_TIME].store(emitted.host_time, Relaxed);
    page[host_page::REPLY_EPOCH].store(answer.epoch, Relaxed);
    page[host_page::REPLY_MASK_VERSION].store(answer.mask_version, Relaxed);
    let status = u64::from(emitted.seq) | (answer.status as u64) << 32;
    // ORDERING: pairs with the Acquire load of the guest that waits for its
    // seq: the rest of the reply is there.
    page[host_page::REPLY].store(status, Ordering::Release);
}

/// Serves a reference point on the thread that sees the store: copies the slot
/// once, has it recorded, replies. Takes no lock, allocates nothing.
///
/// Whatever is wrong with the slot is `record`'s to count, and
/// [`Status::Invalid`] then.
#[inline]
pub fn serve(
    memory: &ClientMemory<'_>,
    emitted: Emitted,
    record: impl FnOnce(Result<&ReferencePoint<'_>, BadSlot>) -> Answer,
) {
    // Most events are short, and zeroing 2 KiB costs as much as all the rest.
    let answer = match read(memory.guest, &emitted) {
        Err(bad) => record(Err(bad)),
        Ok((point, words)) if words.len() <= 16 => copied::<16>(memory, point, words, record),
        Ok((point, words)) => copied::<SLOT_WORDS>(memory, point, words, record),
    };
    reply(memory.host, &emitted, answer);
}

fn copied<const N: usize>(
    memory: &ClientMemory<'_>,
    point: ReferencePoint<'_>,
    slot: &[AtomicU64],
    record: impl FnOnce(Result<&ReferencePoint<'_>, BadSlot>) -> Answer,
) -> Answer {
    let mut words = [0; N];
    copy(&mut words, slot);
    // ORDERING: pairs with the Release fence in `Producer::slot`: of a guest
    // that has not waited, and wrote the next one meanwhile, this is no mixture.
    fence(Ordering::Acquire);
    if memory.guest[guest_page::SLOT].load(Relaxed) as u32 != point.seq {
        return record(Err(BadSlot::Sequence));
    }
    record(Ok(&ReferencePoint { words: &words[..slot.len()], ..point }))
}

/// Copies a guest's words, each once.
#[inline]
pub fn copy(to: &mut [u64], from: &[AtomicU64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.load(Relaxed);
    }
}
