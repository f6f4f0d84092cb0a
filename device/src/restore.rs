// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Saving a chip in a snapshot of its machine, and restoring it.

use crate::chip::{Chip, lock};
use crate::memory::Pages;
use crate::state::{ChipState, ClientState, RestoreError, STATE_VERSION};
use hypertrace_abi::atomic::Ordering::Relaxed;
use hypertrace_abi::clients::Clients;
use hypertrace_abi::layout::MASK_BYTES;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{Consumer, ConsumerState, RingPosition};
use hypertrace_abi::sink::{KnownClient, with_drain};
use std::collections::HashMap;

impl Chip {
    /// Drains the rings and returns the device's state, for a snapshot of the machine. The snapshot must also
    /// contain guest RAM and the [shared regions](Chip::memory). Records that the sink cannot take count as
    /// lost, so no record is in two sessions. After this call, the device may continue.
    ///
    /// Call this while no vCPU runs, on any thread that may wait for a disk.
    pub fn state(&self) -> ChipState {
        let of_loop = &mut *lock(&self.clients);
        self.empty_rings(of_loop);
        let clients = self.registers.iter().zip(&of_loop.states).map(|(client, state)| {
            let RingPosition { position, sequence, token, lost, schemas } = state.place();
            let registers = client.shadows.each_ref().map(|shadow| shadow.load(Relaxed));
            let rest = ClientState::default();
            ClientState { registers, position, sequence, token, lost, schemas, ..rest }
        });
        let geometry = &self.geometry;
        let mut state = ChipState {
            version: STATE_VERSION,
            ring_bytes: geometry.ring_bytes,
            block_bytes: geometry.block_bytes,
            schema_bytes: geometry.schema_bytes,
            legacy_args: geometry.legacy_args,
            ring_mode: self.ring_mode as u32,
            features: self.config.features().bits(),
            vcpu_clients: self.config.vcpu_clients as u32,
            epoch: self.versions.epoch.load(Relaxed) as u32,
            mask_version: self.versions.mask.load(Relaxed),
            texts: Vec::new(),
            clients: clients.collect(),
        };
        let ChipState { texts, clients, .. } = &mut state;
        // Each text is kept once, because most clients have the same texts.
        let mut indices = HashMap::new();
        with_drain(&*self.sink, |sink| {
            sink.known_clients(&mut |known| {
                let Some(client) = clients.get_mut(known.client as usize) else { return };
                client.clock = known.clock as u32;
                client.name = known.name.to_owned();
                let index = |text: &&str| match indices.get(*text) {
                    Some(index) => *index,
                    None => {
                        let index = texts.len() as u32;
                        texts.push((*text).to_owned());
                        indices.insert((*text).to_owned(), index);
                        index
                    }
                };
                client.texts = known.texts.iter().map(index).collect();
            })
        });
        state
    }

    /// Restores the state of a snapshot in this device, which has no guest yet. The guests continue, and do
    /// not notice the restore. The sink receives from the state the schemas that the sink needs, and begins
    /// another [generation](hypertrace_abi::sink::DrainSink::begin_generation). If the session has events
    /// from after the snapshot, the guest may make these events again. The repeated events then belong to the
    /// new generation. Clients whose memory is zero begin as after a [reset](Chip::reset).
    ///
    /// `memory` is the result of [`Memory::save`](crate::Memory::save). If `memory` is `None`, the device's
    /// memory must already have the contents of the snapshot, and the drain loop must not have begun.
    ///
    /// The saved device must have had the same geometry, and the same settings on which guests rely: the ring
    /// mode, the number of vCPUs' clients, and `has_doorbells`. Counters continue. A drain loop waits while
    /// this function runs, and afterwards keeps its timer for 10 s.
    ///
    /// Call this before any vCPU runs, on any thread that may wait for a disk.
    ///
    /// # Errors
    /// If the state belongs to another device or is impossible, or if this device has already recorded
    /// something. After such an error, the device is unchanged. If the host has no memory for the pages.
    /// After this error, the device has been reset.
    pub fn restore(&self, state: &ChipState, memory: Option<&[Pages]>) -> Result<(), RestoreError> {
        let vcpus = self.config.vcpu_clients as u32;
        state.check(&self.geometry, vcpus, self.config.features(), self.ring_mode)?;
        let mut guard = lock(&self.clients);
        self.check_unused(&guard, memory.is_some())?;
        if let Some(pages) = memory {
            match self.memory.load(pages) {
                Err(why @ RestoreError::Memory(_)) => {
                    drop(guard);
                    self.reset();
                    return Err(why);
                }
                loaded => loaded?,
            }
        }
        let clients = &mut *guard;
        // A guest notices only whether these numbers change. A number near the maximum is therefore reduced,
        // so that it can still grow.
        self.versions.epoch.store(u64::from(state.epoch) % (1 << 31), Relaxed);
        self.versions.mask.store(state.mask_version % (1 << 63), Relaxed);
        let texts = state.clients.iter().map(|client| {
            let texts = client.texts.iter();
            texts.filter_map(|text| Some(state.texts.get(*text as usize)?.as_str())).collect()
        });
        let texts: Vec<Vec<&str>> = texts.collect();
        let known = (0..).zip(&state.clients).zip(&texts).map(|((client, saved), texts)| {
            let clock = match saved.clock {
                0 => ClockKind::Tsc,
                _ => ClockKind::MonotonicRaw,
            };
            KnownClient { client, token: saved.token, clock, name: &saved.name, texts }
        });
        let known: Vec<_> = known.collect();
        self.versions.begin_generation(|epoch| {
            self.guarded(|| with_drain(&*self.sink, |sink| sink.begin_generation(epoch, &known)))
                .unwrap_or(epoch)
        });
        for (client, saved) in self.registers.iter().zip(&state.clients) {
            for (shadow, value) in client.shadows.iter().zip(saved.registers) {
                shadow.store(value, Relaxed);
            }
        }
        for ((client, saved), own) in (0..).zip(&state.clients).zip(&mut clients.states) {
            if let Some(memory) = self.client_memory(client).filter(|memory| !memory.is_fresh()) {
                *own = ConsumerState::continue_at(&saved.place());
                // A guest may have overwritten the tail and the end of the read schemas in page H, and may
                // wait for these words.
                let mut consumer = Consumer::new(memory, own);
                consumer.publish_tail();
                consumer.commit_schemas();
            }
        }
        let heads = (0..self.geometry.clients).map(|client| self.head(client));
        let rest = &mut *lock(&self.rest);
        let now = rest.now();
        rest.restore(heads, now);
        self.memory.set_config(&self.config_bytes());
        // The memory has the mask of the saved device. From here on, all names are switched on, until the
        // next pass sets the sink's mask.
        self.set_mask(&[0; MASK_BYTES as usize]);
        // The drain loop may wait for a KICK already, but these guests may not kick soon, so the loop is
        // woken.
        self.wake_drain();
        Ok(())
    }

    /// Checks that nothing was recorded. `is_memory_ours` says that the memory belongs to this device and has
    /// no contents of a snapshot yet.
    fn check_unused(&self, clients: &Clients, is_memory_ours: bool) -> Result<(), RestoreError> {
        let is_used = |client: &u32| {
            let number = *client as usize;
            self.registers[number].is_used.load(Relaxed)
                || clients.states[number].place() != ConsumerState::default().place()
                || is_memory_ours
                    && self.client_memory(*client).is_some_and(|memory| !memory.is_fresh())
        };
        let used = (0..self.geometry.clients).find(is_used);
        used.map_or(Ok(()), |client| Err(RestoreError::InUse { client }))
    }
}
