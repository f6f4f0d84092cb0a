// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The config page, which tells a guest the layout of the device.

use crate::layout::{Geometry, GeometryError, PCI_REVISION};
use crate::legacy;
use crate::trace_parent::TraceParent;
use bitflags::bitflags;

/// "HYPTRACE", read as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HYPTRACE");
/// Version of this interface, which [`ConfigPage::version`] contains.
pub const VERSION: u32 = 3;
const _: () = assert!(PCI_REVISION as u32 == VERSION);

bitflags! {
    /// Capabilities of this host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Features: u64 {
        /// A store to KICK does not exit to the VMM.
        const KICK = 1;
        /// Stores to registers trap. Without this feature, all regions are shared memory. To request a
        /// reference point, a client then writes its slot and rings its bell.
        const TRAPS = 4;
        /// The segment is the memory of a VM's PCI function. The two sides have different kernels and cannot
        /// wake each other: each sleeps for a short time and looks again.
        const REMOTE = 16;
    }
}

/// Behaviour of a full ring, chosen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum RingMode {
    /// The newest event is dropped and counted.
    #[default]
    Discard = 0,
    /// The ring overwrites the oldest events, so that the session works as a flight recorder.
    Overwrite = 1,
}

/// Contents of BAR 0. All offsets follow from the sizes: see [`Geometry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ConfigPage {
    /// 0x00: the words of 2016.
    pub legacy: legacy::Words,
    /// 0x28: [`MAGIC`].
    pub magic: u64,
    /// 0x30: [`VERSION`].
    pub version: u32,
    /// 0x34: [`RingMode`].
    pub ring_mode: u32,
    /// 0x38: [`Features`].
    pub features: u64,
    /// 0x40: the session's UUID.
    pub session: [u8; 16],
    /// 0x50: the clock epoch when the guest was started.
    pub epoch: u64,
    /// 0x58: ticks per second of the guest's raw counter, 0 if unknown.
    pub guest_frequency: u64,
    /// 0x60: ticks per second of the host's raw counter, 0 if unknown.
    pub host_frequency: u64,
    /// 0x68: number n of clients that belong to vCPUs. These clients have the numbers 0 to n - 1. Programs
    /// lease the other clients.
    pub vcpu_clients: u64,
    /// 0x70: size of a client's schema log in bytes. The log follows pages G and H.
    pub schema_size: u64,
    /// 0x78: size of a client's ring in bytes. The ring follows the schema log.
    pub ring_size: u64,
    /// 0x80: size of a ring's block in bytes.
    pub block_size: u64,
    /// 0x88: the caller's span, zeros if there is no such span: see [`ConfigPage::trace_parent`].
    pub trace_parent: [u64; TraceParent::WORDS],
}

/// The reason why this library cannot use a config page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The magic word is this value instead of [`MAGIC`].
    Magic(u64),
    /// The page has this version of the interface instead of [`VERSION`].
    Version(u32),
    /// The ring mode is this number, which is unknown.
    RingMode(u32),
    /// A size is out of bounds.
    Geometry(GeometryError),
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ConfigError::Magic(found) => {
                write!(f, "no hypertrace device: magic at 0x28 is {found:#x}, expected {MAGIC:#x}")
            }
            ConfigError::Version(found) => {
                write!(f, "hypertrace interface version {found}, this library speaks {VERSION}")
            }
            ConfigError::RingMode(found) => write!(f, "unknown ring mode {found} at 0x34"),
            ConfigError::Geometry(why) => write!(f, "config page: {why}"),
        }
    }
}

impl core::error::Error for ConfigError {}

/// Choices of the host, other than sizes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct HostInfo {
    /// Behaviour of a full ring.
    pub ring_mode: RingMode,
    /// Capabilities of this host.
    pub features: Features,
    /// The session's UUID.
    pub session: [u8; 16],
    /// The clock epoch when the guest was started.
    pub epoch: u64,
    /// Ticks per second of the guest's raw counter, 0 if unknown.
    pub guest_frequency: u64,
    /// Ticks per second of the host's raw counter, 0 if unknown.
    pub host_frequency: u64,
    /// Number of clients that belong to vCPUs: clients [0, n).
    pub vcpu_clients: u32,
    /// The caller's span, during which the session is recorded.
    pub trace_parent: Option<TraceParent>,
}

impl HostInfo {
    /// Returns the information after `change` has modified it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut HostInfo)) -> HostInfo {
        change(&mut self);
        self
    }
}

/// Number of u64 words of a [`ConfigPage`].
pub const CONFIG_WORDS: usize = size_of::<ConfigPage>() / 8;

impl ConfigPage {
    /// Makes the page that describes this geometry.
    pub fn new(g: &Geometry, host: &HostInfo) -> ConfigPage {
        ConfigPage {
            legacy: legacy::Words::new(g),
            magic: MAGIC,
            version: VERSION,
            ring_mode: host.ring_mode as u32,
            features: host.features.bits(),
            session: host.session,
            epoch: host.epoch,
            guest_frequency: host.guest_frequency,
            host_frequency: host.host_frequency,
            vcpu_clients: host.vcpu_clients.into(),
            schema_size: g.schema_bytes,
            ring_size: g.ring_bytes,
            block_size: g.block_bytes,
            trace_parent: TraceParent::words(host.trace_parent.as_ref()),
        }
    }

    /// Returns the page's words, in the order of memory.
    pub fn words(&self) -> [u64; CONFIG_WORDS] {
        let pair = zerocopy::transmute!([self.version, self.ring_mode]);
        let [session, session_end]: [u64; 2] = zerocopy::transmute!(self.session);
        let [trace_high, trace_low, span, flags] = self.trace_parent;
        let legacy::Words { max_clients, client_args, client_data_size, control_size, data_size } =
            self.legacy;
        [
            max_clients,
            client_args,
            client_data_size,
            control_size,
            data_size,
            self.magic,
            pair,
            self.features,
            session,
            session_end,
            self.epoch,
            self.guest_frequency,
            self.host_frequency,
            self.vcpu_clients,
            self.schema_size,
            self.ring_size,
            self.block_size,
            trace_high,
            trace_low,
            span,
            flags,
        ]
    }

    /// Returns the page that consists of these words.
    pub fn from_words(words: &[u64; CONFIG_WORDS]) -> ConfigPage {
        let [max_clients, client_args, client_data_size, control_size, data_size, magic, pair, ..] =
            *words;
        let [_, _, _, _, _, _, _, features, session, session_end, epoch, guest_frequency, ..] =
            *words;
        let [.., host_frequency, vcpu_clients, schema_size, ring_size, block_size, _, _, _, _] =
            *words;
        let [.., trace_high, trace_low, span, flags] = *words;
        let [version, ring_mode] = zerocopy::transmute!(pair);
        let session = zerocopy::transmute!([session, session_end]);
        ConfigPage {
            legacy: legacy::Words {
                max_clients,
                client_args,
                client_data_size,
                control_size,
                data_size,
            },
            magic,
            version,
            ring_mode,
            features,
            session,
            epoch,
            guest_frequency,
            host_frequency,
            vcpu_clients,
            schema_size,
            ring_size,
            block_size,
            trace_parent: [trace_high, trace_low, span, flags],
        }
    }

    /// Returns the caller's span, if the host gives one.
    pub fn trace_parent(&self) -> Option<TraceParent> {
        TraceParent::from_words(self.trace_parent)
    }

    /// Checks each size, and returns the geometry that the page describes.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn geometry(&self) -> Result<Geometry, ConfigError> {
        if self.magic != MAGIC {
            return Err(ConfigError::Magic(self.magic));
        }
        if self.version != VERSION {
            return Err(ConfigError::Version(self.version));
        }
        self.ring_mode()?;
        let g = Geometry {
            clients: self.legacy.max_clients.try_into().unwrap_or(u32::MAX),
            legacy_args: self.legacy.client_args.try_into().unwrap_or(u32::MAX),
            ring_bytes: self.ring_size,
            block_bytes: self.block_size,
            schema_bytes: self.schema_size,
        };
        g.check().map_err(ConfigError::Geometry)?;
        Ok(g)
    }

    /// Returns the behaviour of a full ring.
    ///
    /// # Errors
    /// Returns [`ConfigError::RingMode`] if the number is unknown.
    pub fn ring_mode(&self) -> Result<RingMode, ConfigError> {
        match self.ring_mode {
            0 => Ok(RingMode::Discard),
            1 => Ok(RingMode::Overwrite),
            other => Err(ConfigError::RingMode(other)),
        }
    }

    /// Returns the capabilities of this host, without unknown bits.
    pub fn features(&self) -> Features {
        Features::from_bits_truncate(self.features)
    }

    /// Returns the end mark, a nonzero part of the session's UUID. The host of a segment writes this number
    /// when the host has ended.
    pub fn end_mark(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.session;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_as_documented() {
        assert_eq!(core::mem::offset_of!(ConfigPage, magic), 0x28);
        assert_eq!(core::mem::offset_of!(ConfigPage, features), 0x38);
        assert_eq!(core::mem::offset_of!(ConfigPage, session), 0x40);
        assert_eq!(core::mem::offset_of!(ConfigPage, vcpu_clients), 0x68);
        assert_eq!(core::mem::offset_of!(ConfigPage, schema_size), 0x70);
        assert_eq!(core::mem::offset_of!(ConfigPage, trace_parent), 0x88);
        assert_eq!(size_of::<ConfigPage>(), 0xa8);
    }

    #[test]
    fn words_stand_in_the_order_of_memory() {
        let words = core::array::from_fn(|at| 8 * at as u64);

        let page = ConfigPage::from_words(&words);

        assert_eq!(
            (page.legacy.max_clients, page.magic, page.version, page.ring_mode),
            (0, 0x28, 0x30, 0)
        );
        assert_eq!((page.features, page.session[0], page.session[8]), (0x38, 0x40, 0x48));
        assert_eq!((page.epoch, page.schema_size, page.block_size), (0x50, 0x70, 0x80));
        assert_eq!(page.trace_parent, [0x88, 0x90, 0x98, 0xa0]);
        assert_eq!(page.words(), words);
    }

    #[test]
    fn a_guest_that_does_not_know_the_callers_span_reads_the_same_page() {
        /// Number of words that a guest reads from the page if the guest does not know the caller's span.
        const BEFORE: usize = 0x88 / 8;
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent: TraceParent = text.parse().unwrap();
        let host = HostInfo { epoch: 3, vcpu_clients: 2, ..HostInfo::default() };
        let page = |trace_parent| {
            let host = HostInfo { trace_parent, ..host };
            ConfigPage::new(&Geometry::default(), &host)
        };
        let (without, with) = (page(None), page(Some(parent)));

        assert_eq!(with.words()[..BEFORE], without.words()[..BEFORE]);
        assert_eq!(without.words()[BEFORE..], [0; TraceParent::WORDS]);
        assert_eq!((without.trace_parent(), with.trace_parent()), (None, Some(parent)));
    }

    #[test]
    fn a_page_returns_its_geometry() {
        let g = Geometry { clients: 5, legacy_args: 3, ..Geometry::default() };
        let page = ConfigPage::new(&g, &HostInfo::default());
        assert_eq!(page.geometry(), Ok(g));
    }
}
