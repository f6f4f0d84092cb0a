//! The form of perf's records in the ring. A record has a header with type, flags and size, then a body, and
//! then the fields that [`ring`](super::ring) asks the kernel for: pid, tid, time, CPU.

/// Size of the fields after a record's body, in bytes.
const TRAILER: usize = 24;

const LOST: u32 = 2;
const COMM: u32 = 3;
const SWITCH: u32 = 14;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;

/// A record that recordings use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A thread got the CPU, or left it.
    Switch {
        pid: u32,
        tid: u32,
        /// CLOCK_MONOTONIC_RAW in nanoseconds
        time: u64,
        out: bool,
        /// True if the thread was still runnable when the thread left the CPU.
        preempted: bool,
    },
    /// Number of records that found no room.
    Lost(u64),
    /// The name of a thread.
    Name { tid: u32, name: String },
}

/// Reads records from the start of a buffer.
///
/// Returns the record and its size. A record of any other kind is returned as `None` with its size. If the
/// buffer holds no whole record, returns `Ok(None)`.
///
/// # Errors
/// If a record's size is impossible.
pub(super) fn first(bytes: &[u8]) -> Result<Option<(Option<Record>, usize)>, ()> {
    let u32_at = |at: usize| {
        bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
    };
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    if bytes.len() < 8 {
        return Ok(None);
    }
    let kind = u32_at(0);
    let (misc, size) = (u32_at(4) as u16, (u32_at(4) >> 16) as usize);
    if size < 8 || !size.is_multiple_of(8) {
        return Err(());
    }
    if bytes.len() < size {
        return Ok(None);
    }
    let trailer = size - TRAILER.min(size - 8);
    let record = match kind {
        SWITCH if size >= 8 + TRAILER => Some(Record::Switch {
            pid: u32_at(trailer),
            tid: u32_at(trailer + 4),
            time: u64_at(trailer + 8),
            out: misc & MISC_SWITCH_OUT != 0,
            preempted: misc & MISC_SWITCH_OUT_PREEMPT != 0,
        }),
        LOST if size >= 24 => Some(Record::Lost(u64_at(16))),
        COMM if size >= 16 + TRAILER => {
            let name = bytes[16..trailer].split(|b| *b == 0).next().unwrap_or_default();
            Some(Record::Name { tid: u32_at(12), name: String::from_utf8_lossy(name).into_owned() })
        }
        _ => None,
    };
    Ok(Some((record, size)))
}

#[cfg(test)]
pub(super) fn switch(tid: u32, time: u64, misc: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(SWITCH.to_ne_bytes());
    bytes.extend(misc.to_ne_bytes());
    bytes.extend(32u16.to_ne_bytes());
    bytes.extend(7u32.to_ne_bytes());
    bytes.extend(tid.to_ne_bytes());
    bytes.extend(time.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read_and_a_cut_record_is_none() {
        let bytes = switch(9, 1234, MISC_SWITCH_OUT | MISC_SWITCH_OUT_PREEMPT);
        let expected = Record::Switch { pid: 7, tid: 9, time: 1234, out: true, preempted: true };
        assert_eq!(first(&bytes), Ok(Some((Some(expected), 32))));
        for cut in 0..bytes.len() {
            assert_eq!(first(&bytes[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(first(&[0; 32]), Err(()), "a record without a size");
    }
}
