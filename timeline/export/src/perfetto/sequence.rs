// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sequences of packets. The first packets of a sequence define names and defaults, and later packets refer
//! to these names and defaults.

use super::fields::{PACKET, clock, event, packet, track};
use super::intern::Interned;
use super::proto::Proto;
use crate::{Error, Result};
use std::io::Write;

/// Number of bytes that are written at once.
const AT_ONCE: usize = 1 << 16;

/// The output file, and the bytes that are not written yet.
pub(super) struct Output<'a> {
    out: &'a mut dyn Write,
    bytes: Proto,
    pub packets: u64,
    pub written: u64,
}

impl<'a> Output<'a> {
    pub fn new(out: &'a mut dyn Write) -> Output<'a> {
        Output { out, bytes: Proto::default(), packets: 0, written: 0 }
    }

    /// Appends a packet. `write` appends the packet's fields.
    #[inline]
    pub fn packet<T>(&mut self, write: impl FnOnce(&mut Proto) -> T) -> Result<T> {
        let result = self.bytes.message(PACKET, write);
        self.packets += 1;
        if self.bytes.bytes().len() >= AT_ONCE {
            self.flush()?;
        }
        Ok(result)
    }

    /// Writes the bytes that are not written yet.
    pub fn flush(&mut self) -> Result<()> {
        self.out.write_all(self.bytes.bytes()).map_err(Error::Write)?;
        self.written += self.bytes.bytes().len() as u64;
        self.bytes.clear();
        Ok(())
    }
}

/// The trace's clock: BOOTTIME if a session has read it, else REALTIME.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceClock {
    /// REALTIME at an instant.
    pub unix_ns: i64,
    /// BOOTTIME at that instant.
    pub boot_ns: Option<i64>,
}

impl TraceClock {
    /// Returns the id of the clock.
    pub fn id(&self) -> u64 {
        self.boot_ns.map_or(clock::REALTIME, |_| clock::BOOTTIME)
    }

    /// Returns a Unix time on this clock. Viewers have no time before 0.
    #[inline]
    pub fn at(&self, ts_ns: i64) -> Option<u64> {
        let since = ts_ns.checked_sub(self.unix_ns);
        let at = match self.boot_ns {
            None => Some(ts_ns),
            Some(boot_ns) => since.and_then(|since| since.checked_add(boot_ns)),
        };
        at.and_then(|at| at.try_into().ok())
    }

    /// Writes a snapshot of the clocks at the time `at`. If `is_incremental` is true, the snapshot includes
    /// the sequence's own incremental clock.
    pub fn write_snapshot(&self, packet: &mut Proto, at: u64, is_incremental: bool) {
        let write = |id: u64, time: u64, is_incremental: bool, packet: &mut Proto| {
            packet.message(clock::CLOCKS, |of| {
                of.number(clock::ID, id);
                of.number(clock::TIMESTAMP, time);
                if is_incremental {
                    of.number(clock::IS_INCREMENTAL, 1);
                }
            });
        };
        packet.message(packet::CLOCK_SNAPSHOT, |packet| {
            if is_incremental {
                write(clock::OF_SEQUENCE, at, true, packet);
            }
            write(self.id(), at, false, packet);
            // REALTIME is written too, because viewers place the times of other machines and files with
            // REALTIME.
            if let Some(boot_ns) = self.boot_ns {
                let real = i128::from(at) - i128::from(boot_ns) + i128::from(self.unix_ns);
                if let Ok(real) = u64::try_from(real) {
                    write(clock::REALTIME, real, false, packet);
                }
            }
            packet.number(clock::PRIMARY, self.id());
        });
    }
}

/// Packets of one machine whose names and times depend on earlier packets.
#[derive(Debug)]
pub(super) struct Sequence {
    id: u64,
    machine: u64,
    pub interned: Interned,
    /// Time of the last packet on the sequence's own clock. `None` if the sequence has no clock of its own.
    last: Option<u64>,
    has_begun: bool,
    is_incremental: bool,
    /// Id of the default track, for events that name no track. 0 if there is no default track.
    track: u64,
}

impl Sequence {
    /// Makes a sequence of a machine. The host is machine 0. `is_incremental`: whether the packets are mostly
    /// in order of time.
    pub fn new(id: u64, machine: u64, is_incremental: bool) -> Sequence {
        let interned = Interned::default();
        Sequence { id, machine, interned, last: None, has_begun: false, is_incremental, track: 0 }
    }

    /// Writes the fields that each packet has.
    #[inline]
    fn write_head(&self, packet: &mut Proto, flags: u64) {
        packet.number(packet::SEQUENCE, self.id);
        packet.number(packet::SEQUENCE_FLAGS, flags);
        if self.machine != 0 {
            packet.number(packet::MACHINE, self.machine);
        }
    }

    /// Writes the snapshot of clocks, which packets with a time need.
    pub fn snapshot(&mut self, out: &mut Output<'_>, clock: TraceClock, at: u64) -> Result<()> {
        self.last = self.is_incremental.then_some(at);
        self.plain(out, |packet| clock.write_snapshot(packet, at, self.is_incremental))
    }

    /// Begins the sequence, or begins it anew, with a packet of defaults.
    fn begin(&mut self, out: &mut Output<'_>, clock: TraceClock) -> Result<()> {
        self.interned.clear();
        self.has_begun = true;
        let id = if self.is_incremental { clock::OF_SEQUENCE } else { clock.id() };
        out.packet(|packet| {
            self.write_head(packet, packet::CLEARED);
            packet.message(packet::DEFAULTS, |defaults| {
                if self.track != 0 {
                    defaults.message(packet::TRACK_EVENT, |event| {
                        event.number(event::TRACK, self.track);
                    });
                }
                defaults.number(packet::CLOCK, id);
            });
        })
    }

    /// Writes an event of a track. `write` appends the fields that only this event has.
    #[inline]
    pub fn event(
        &mut self,
        out: &mut Output<'_>,
        clock: TraceClock,
        (at, kind, track): (u64, u64, u64),
        write: impl FnOnce(&mut Proto, &mut Interned),
    ) -> Result<()> {
        if self.has_to_begin() {
            // The first event's track is the default, because a guest with one thread has nearly all events
            // on one track.
            self.track = track;
        }
        let is_default = track == self.track;
        self.packet(out, clock, at, |packet, interned| {
            packet.message(packet::TRACK_EVENT, |proto| {
                proto.number(event::TYPE, kind);
                if !is_default {
                    proto.number(event::TRACK, track);
                }
                write(proto, interned);
            });
        })
    }

    fn has_to_begin(&self) -> bool {
        !self.has_begun || self.interned.is_full()
    }

    /// Writes a packet with a time.
    #[inline]
    pub fn packet(
        &mut self,
        out: &mut Output<'_>,
        clock: TraceClock,
        at: u64,
        write: impl FnOnce(&mut Proto, &mut Interned),
    ) -> Result<()> {
        if self.has_to_begin() {
            self.begin(out, clock)?;
        }
        let since = self.last.map(|last| at.checked_sub(last));
        out.packet(|packet| {
            match since {
                Some(Some(since)) => {
                    packet.number(packet::TIMESTAMP, since);
                    self.last = Some(at);
                }
                // The packet's time is earlier than the time of the packet before, and the sequence's own
                // clock cannot go back.
                Some(None) => {
                    packet.number(packet::TIMESTAMP, at);
                    packet.number(packet::CLOCK, clock.id());
                }
                None => packet.number(packet::TIMESTAMP, at),
            }
            self.write_head(packet, packet::NEEDED);
            write(packet, &mut self.interned);
            self.interned.write_new(packet);
        })
    }

    /// Writes a packet that has no time and refers to no earlier packet of the sequence.
    pub fn plain(&self, out: &mut Output<'_>, write: impl FnOnce(&mut Proto)) -> Result<()> {
        out.packet(|packet| {
            packet.number(packet::SEQUENCE, self.id);
            if self.machine != 0 {
                packet.number(packet::MACHINE, self.machine);
            }
            write(packet);
        })
    }

    /// Writes the description of a track.
    pub fn describe(
        &self,
        out: &mut Output<'_>,
        uuid: u64,
        write: impl FnOnce(&mut Proto),
    ) -> Result<()> {
        self.plain(out, |packet| {
            packet.message(packet::TRACK_DESCRIPTOR, |proto| {
                proto.number(track::UUID, uuid);
                write(proto);
            });
        })
    }
}
