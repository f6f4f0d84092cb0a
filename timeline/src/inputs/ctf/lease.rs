// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lease records. A lease record says which thread writes the records that follow in the ring.

use super::stream::Record;
use hypertrace_abi::ring::MAX_NAME_BYTES;
use hypertrace_abi::schema::Value;

/// A lease record.
#[derive(Default)]
pub(super) struct Lease {
    /// Token of the lease.
    pub token: Option<u64>,
    /// Process of the holder.
    pub pid: Option<u32>,
    /// Thread of the holder.
    pub tid: Option<u32>,
    /// Name of the holder.
    pub name: String,
}

impl Lease {
    /// Reads a record of the class `lease`.
    pub fn of(record: &Record<'_>) -> Lease {
        let mut lease = Lease::default();
        for (field, value) in record.class.fields.iter().zip(record.class.values(record.payload)) {
            match (&**field, value) {
                ("token", Value::Hex(token)) => lease.token = Some(token),
                ("pid", Value::Unsigned(pid)) => lease.pid = u32::try_from(pid).ok(),
                ("tid", Value::Unsigned(tid)) => lease.tid = u32::try_from(tid).ok(),
                ("name", Value::Str(name)) => lease.name = shown(name),
                _ => {}
            }
        }
        lease
    }
}

/// Returns a holder's name, cut to [`MAX_NAME_BYTES`]. The size is limited because the name is shown with
/// each event of the holder.
fn shown(name: &[u8]) -> String {
    let name = &name[..name.len().min(MAX_NAME_BYTES)];
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(shown(b"vcpu 0"), "vcpu 0");
        assert_eq!(shown(&[b'x'; 4000]).len(), MAX_NAME_BYTES);
        // A character that was cut in two is shown as the replacement character.
        assert!(shown(&[0xe2; 4000]).chars().count() <= MAX_NAME_BYTES);
    }
}
