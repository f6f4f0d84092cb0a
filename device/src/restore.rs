// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A chip's way into a snapshot of its machine, and back.

use crate::chip::{Chip, ChipConfig, DrainWaker, lock};
use crate::memory::Memory;
use crate::state::{ChipState, ClientState, RestoreError, STATE_VERSION};
use hypertrace_abi::atomic::Ordering::Relaxed;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{Consumer, ConsumerState, Place};
use hypertrace_abi::sink::{EventSink, KnownClient, with_drain};
use hypertrace_abi::slot::Versions;
use std::collections::HashMap;

impl Chip {
    /// Drains the rings and returns the device's state, for a snapshot of the machine together with
    /// its memory: guest RAM and the [shared regions](Chip::memory). Records that the sink cannot
    /// take count as lost, so none is in two sessions. The device may continue afterwards.
    ///
    /// Call it while no vCPU runs, on any thread that may wait for a disk.
    pub fn state(&self) -> ChipState {
        let of_loop = &mut *lock(&self.clients);
        self.empty_rings(of_loop);
        let clients = self.registers.iter().zip(&of_loop.states).map(|(client, state)| {
            let Place { position, sequence, token, lost, schemas } = state.place();
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
        // Clients have mostly the same texts.
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

    /// Makes a device on memory that has the contents of the snapshot. Its guests continue where they
    /// were, and need not know: the sink gets the schemas that it needs from the state, and
    /// begins another [generation](hypertrace_abi::sink::DrainSink::begin_generation), so events after an older snapshot
    /// that happen again are of another one. Of clients whose memory is zero, it begins as after a
    /// [reset](Chip::reset).
    ///
    /// The geometry is that of the device before, and of `config` what guests rely on: the ring mode, the
    /// number of vCPUs' clients, and whether KICK is cheap. Counts begin at 0. A drain loop
    /// keeps its timer for 10 s.
    ///
    /// Call it before a vCPU runs.
    ///
    /// # Errors
    /// If the state is of another device, or says what no device's state can: then nothing was done.
    pub fn restore(
        memory: Memory,
        config: &ChipConfig,
        state: &ChipState,
        sink: impl EventSink + 'static,
        waker: impl DrainWaker + 'static,
    ) -> Result<Self, RestoreError> {
        state.check(memory.geometry(), config, sink.facts().ring_mode)?;
        let mut chip = Chip::new(memory, config, sink, waker);
        // Guests see whether they change, no more. So the greatest ones begin again, where there is room for as many.
        let (epoch, mask) = (u64::from(state.epoch) % (1 << 31), state.mask_version % (1 << 63));
        chip.versions = Versions { epoch: epoch.into(), mask: mask.into() };
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
        chip.versions.begin_generation(|epoch| {
            with_drain(&*chip.sink, |sink| sink.begin_generation(epoch, &known))
        });
        for (client, saved) in chip.registers.iter().zip(&state.clients) {
            for (shadow, value) in client.shadows.iter().zip(saved.registers) {
                shadow.store(value, Relaxed);
            }
        }
        let saved = (0..).zip(&state.clients);
        for ((client, saved), own) in saved.zip(&mut lock(&chip.clients).states) {
            if let Some(memory) = chip.client_memory(client).filter(|memory| !memory.is_fresh()) {
                *own = ConsumerState::continue_at(&saved.place());
                // A guest may have overwritten what it waits for.
                let mut consumer = Consumer::new(memory, own);
                consumer.publish_tail();
                consumer.commit_schemas();
            }
        }
        let heads = (0..chip.geometry.clients).map(|client| chip.head(client));
        let now = lock(&chip.rest).now();
        lock(&chip.rest).restore(heads, now);
        chip.memory.set_config(&chip.config_bytes());
        chip.publish(&lock(&chip.mask));
        Ok(chip)
    }
}
