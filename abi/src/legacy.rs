// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface of 2016, which a device still serves to old guests.
//!
//! An old guest reads five [words](Words) at the start of the config page. To record an event, the guest
//! stores all arguments but the first to the client's slot in BAR 1, and then the first argument to the
//! register at `client * 8` in BAR 2. Newer guests use only the numbers of clients and arguments.

use crate::layout::{Geometry, WORD};

/// The first words of the config page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Words {
    /// 0x00: number of clients.
    pub max_clients: u64,
    /// 0x08: number of arguments of an event.
    pub client_args: u64,
    /// 0x10: 8 * client_args.
    pub client_data_size: u64,
    /// 0x18: bytes of registers at the start of BAR 2.
    pub control_size: u64,
    /// 0x20: bytes of argument slots in BAR 1.
    pub data_size: u64,
}

impl Words {
    /// Returns the words that describe this geometry.
    pub const fn new(g: &Geometry) -> Words {
        Words {
            max_clients: g.clients as u64,
            client_args: g.legacy_args as u64,
            client_data_size: WORD * g.legacy_args as u64,
            control_size: g.kick_offset(),
            data_size: g.data_size(),
        }
    }
}

/// Returns the words of BAR 1 that contain the arguments of a client's event, without the first argument.
pub fn slot<'d, T>(data: &'d [T], client: u32, g: &Geometry) -> Option<&'d [T]> {
    let first = u64::from(client) * g.legacy_slot_stride() / WORD;
    data.get(usize::try_from(first).ok()?..)?.get(..g.legacy_args as usize - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_step_by_64_times_args() {
        let g = Geometry { legacy_args: 3, ..Geometry::default() };
        let data: [u64; 64] = core::array::from_fn(|at| at as u64);

        assert_eq!(g.legacy_slot_stride(), 192);
        assert_eq!(slot(&data, 2, &g), Some(&[48, 49][..]));
        assert_eq!(slot(&data, 3, &g), None);
    }
}
