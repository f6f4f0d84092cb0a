// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lease records: who produces into a ring from there on.

use super::stream::Record;
use hypertrace_abi::schema::Value;

/// A lease record.
#[derive(Default)]
pub(super) struct Lease {
    /// Token of the lease.
    pub token: Option<u64>,
    /// Thread of the lessee.
    pub tid: Option<u32>,
    /// Name of the lessee.
    pub name: String,
}

impl Lease {
    /// Reads a record of the class `lease`.
    pub fn of(record: &Record<'_>) -> Lease {
        let mut lease = Lease::default();
        for (field, value) in record.class.fields.iter().zip(record.class.values(record.payload)) {
            match (&**field, value) {
                ("token", Value::Hex(token)) => lease.token = Some(token),
                ("tid", Value::Unsigned(tid)) => lease.tid = u32::try_from(tid).ok(),
                ("name", Value::Str(name)) => lease.name = String::from_utf8_lossy(name).into(),
                _ => {}
            }
        }
        lease
    }
}
