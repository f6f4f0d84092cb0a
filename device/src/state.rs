// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The state of a device as plain data, for a snapshot of the machine.
//!
//! A state is as untrusted as a guest. If a number contradicts the device, or if no device can have the
//! number, an error names the number. Numbers that contradict the guest's memory are counted as the guest's
//! faults.

use hypertrace_abi::config::{Features, RingMode};
use hypertrace_abi::layout::{Geometry, WORD, register};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{MAX_NAME_BYTES, RingPosition};
use hypertrace_abi::schema::MAX_TEXT;
use thiserror::Error;

/// Version of [`ChipState`] and [`PciState`].
pub(crate) const STATE_VERSION: u32 = 2;

/// Number of shadow words of a client: for the registers of its page, the 2016 register and KICK.
pub(crate) const REGISTERS: usize = (register::END / WORD + 2) as usize;

/// Number of dwords of a PCI header of type 0.
pub(crate) const HEADER: usize = 16;

/// The reason why a state cannot be restored.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreError {
    /// The state has an unknown version.
    #[error("the device's state has version {found}, expected {expected}")]
    Version {
        /// The only known version.
        expected: u32,
        /// Value in the state.
        found: u32,
    },
    /// The state belongs to a device of another size or configuration.
    #[error("the state is of a device whose {what} is {found}, expected {expected}")]
    Differs {
        /// Name of the size or setting.
        what: &'static str,
        /// Value in this device.
        expected: u64,
        /// Value in the state.
        found: u64,
    },
    /// A number in the device's state is impossible.
    #[error("the state's {what} is {found}, expected at most {most}")]
    Exceeds {
        /// Name of the number.
        what: &'static str,
        /// Greatest possible value.
        most: u64,
        /// Value in the state.
        found: u64,
    },
    /// A number in a client's state is impossible.
    #[error("the state's {what} of client {client} is {found}, expected at most {most}")]
    Client {
        /// Id of the client.
        client: u32,
        /// Name of the number.
        what: &'static str,
        /// Greatest possible value.
        most: u64,
        /// Value in the state.
        found: u64,
    },
    /// The device has recorded something already.
    #[error("client {client} is in use: a state is restored before the guest runs")]
    InUse {
        /// The client that has recorded something.
        client: u32,
    },
    /// The host cannot write to the device's memory. The device has been reset.
    #[error("cannot write the device's memory: {0}")]
    Memory(std::io::ErrorKind),
    /// Bits of PCI config space that no guest can change differ.
    #[error("config space at {offset:#x} has the fixed bits {found:#x}, expected {expected:#x}")]
    Fixed {
        /// Offset of the dword in bytes.
        offset: u64,
        /// Value of the dword in the function's config space.
        expected: u32,
        /// Value of the dword in the saved state.
        found: u32,
    },
}

/// State of a [`Chip`](crate::Chip) whose rings have been drained: see [`Chip::state`](crate::Chip::state).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct ChipState {
    /// Version of this struct.
    pub version: u32,
    /// Size of a client's ring in bytes.
    pub ring_bytes: u64,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Size of a client's schema log in bytes.
    pub schema_bytes: u64,
    /// Number of arguments of a 2016 event.
    pub legacy_args: u32,
    /// Behaviour of a full ring, as in the config page.
    pub ring_mode: u32,
    /// Features, as in the config page. The guests have read these features.
    pub features: u64,
    /// Number of clients that belong to vCPUs.
    pub vcpu_clients: u32,
    /// Clock epoch.
    pub epoch: u32,
    /// Version of the enable mask that guests saw last.
    pub mask_version: u64,
    /// Schema texts, for [`ClientState::texts`].
    pub texts: Vec<String>,
    /// All clients, by id.
    pub clients: Vec<ClientState>,
}

/// State of a [`PciFunction`](crate::PciFunction): config space.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct PciState {
    /// Version of this struct.
    pub version: u32,
    /// Dwords of the header. The guest sets COMMAND, the BARs and the interrupt line; the rest is fixed.
    pub header: [u32; HEADER],
}

/// State of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct ClientState {
    /// Shadow words of the client's registers.
    pub registers: [u64; REGISTERS],
    /// Position in the ring up to which the host has taken all records, in words.
    pub position: u64,
    /// Sequence number of the next record, if known.
    pub sequence: Option<u64>,
    /// Token of the holder, 0 if there is no holder.
    pub token: u64,
    /// The guest's running totals of lost events at the host's last look, by cause: full, busy, unattached.
    pub lost: [u64; 3],
    /// Position in the schema log up to which the host has all texts on disk, in words.
    pub schemas: u64,
    /// Clock of the holder's timestamps, as in its lease record.
    pub clock: u32,
    /// Name of the holder, as the guest claims.
    pub name: String,
    /// Texts that the client has sent, as indices in [`ChipState::texts`].
    pub texts: Vec<u32>,
}

impl ClientState {
    /// Returns the client's positions in the ring and the schema log.
    pub(crate) fn place(&self) -> RingPosition {
        let ClientState { position, sequence, token, lost, schemas, .. } = *self;
        RingPosition { position, sequence, token, lost, schemas }
    }

    fn check(&self, client: u32, texts: usize) -> Result<(), RestoreError> {
        let most = |what, found: u64, most: u64| match found > most {
            true => Err(RestoreError::Client { client, what, most, found }),
            false => Ok(()),
        };
        let sequence = self.sequence.unwrap_or(0);
        most("record number", sequence, RingPosition::most_sequence(self.position))?;
        most("clock", self.clock.into(), ClockKind::MonotonicRaw as u64)?;
        most("name's length", self.name.len() as u64, MAX_NAME_BYTES as u64)?;
        let texts = texts as u64;
        most("number of texts", self.texts.len() as u64, texts)?;
        // If there are no texts, the check above has refused every index.
        let last = texts.saturating_sub(1);
        self.texts.iter().try_for_each(|text| most("index of a text", (*text).into(), last))
    }
}

impl ChipState {
    /// Checks the state against the device in which the state is to be restored.
    pub(crate) fn check(
        &self,
        geometry: &Geometry,
        vcpu_clients: u32,
        features: Features,
        ring_mode: RingMode,
    ) -> Result<(), RestoreError> {
        if self.version != STATE_VERSION {
            let (expected, found) = (STATE_VERSION, self.version);
            return Err(RestoreError::Version { expected, found });
        }
        for (what, expected, found) in [
            ("number of clients", geometry.clients.into(), self.clients.len() as u64),
            ("ring size", geometry.ring_bytes, self.ring_bytes),
            ("block size", geometry.block_bytes, self.block_bytes),
            ("schema log's size", geometry.schema_bytes, self.schema_bytes),
            ("number of arguments", geometry.legacy_args.into(), self.legacy_args.into()),
            ("ring mode", ring_mode as u64, self.ring_mode.into()),
            ("features word", features.bits(), self.features),
            ("number of clients of vCPUs", vcpu_clients.into(), self.vcpu_clients.into()),
        ] {
            if expected != found {
                return Err(RestoreError::Differs { what, expected, found });
            }
        }
        let longest = self.texts.iter().map(String::len).max().unwrap_or(0) as u64;
        if longest > MAX_TEXT as u64 {
            let (what, most, found) = ("longest text", MAX_TEXT as u64, longest);
            return Err(RestoreError::Exceeds { what, most, found });
        }
        let clients = (0..).zip(&self.clients);
        clients.into_iter().try_for_each(|(client, state)| state.check(client, self.texts.len()))
    }
}
