//! The drain loop's side of a session. One lock protects all of this side.

use super::recover::{Committed, KilledSession};
use super::simple_file::SimpleFile;
use crate::ctf::files::HIDDEN;
use crate::ctf::{Domain, WriteFailed, random_uuid};
use crate::drain::classes::Table;
use crate::drain::source::Holder;
use crate::drain::state::LOG_WORDS;
use crate::drain::stats::SESSION_FILES;
use crate::drain::turn::write_counters;
use crate::drain::{
    Account, Guests, HostConsumer, Recorder, Source, Stats, TooManyRules, TraceState, Turn,
};
use crate::events::{HostRings, Pattern};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{Consumer, Fault};
use hypertrace_abi::sink::{Drained, KnownClient};
use hypertrace_format::limits::{MAX_CLIENT_SCHEMAS, MAX_CLIENTS};
use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Engine {
    pub state: TraceState,
    pub guests: Guests,
    pub simple: SimpleFile,
    hosts: Vec<(HostConsumer, Source)>,
    /// Clients that relay the points of other clients.
    relays: Vec<Source>,
    /// `Some` if the session is a flight recorder.
    pub recorder: Option<Recorder>,
    /// The killed session, if this session is its recovery.
    found: Option<KilledSession>,
    /// The first failed write of a session that is no flight recorder. The recovery of a session ends with
    /// this error.
    pub failed: Option<WriteFailed>,
    pub finished: bool,
}

impl Engine {
    /// Returns the engine of a session. Clients below `relays` relay the points of other clients. The engine
    /// treats the rings of these clients as host rings, although these rings lie in the device.
    pub fn new(
        mut state: TraceState,
        rings: &HostRings,
        relays: u32,
        recorder: Option<Recorder>,
    ) -> Engine {
        state.unattached = Arc::clone(&rings.unattached);
        let mut stats = std::mem::take(&mut state.stats);
        let mut source = |number, payer: Option<Account>| {
            let mut source = Source::new(Domain::Host, number, stats.len());
            source.texts.payer = payer.unwrap_or(source.texts.payer);
            stats.push(Stats::new(Domain::Host, number));
            source
        };
        let hosts: Vec<_> = rings
            .rings
            .iter()
            .zip(0..)
            .map(|(ring, number)| {
                (HostConsumer::new(Arc::clone(ring)), source(number, Some(Account::Host)))
            })
            .collect();
        // The threads without a ring have the number that follows the numbers of the host rings. So the first
        // relay has the number after that.
        let first = hosts.len() as u32 + 1;
        let relays = first..first + relays.min(MAX_CLIENTS);
        let relays = relays.map(|number| source(number, None)).collect();
        state.stats = stats;
        let guests = Guests::default();
        Engine {
            state,
            guests,
            simple: SimpleFile::default(),
            hosts,
            relays,
            recorder,
            found: None,
            failed: None,
            finished: false,
        }
    }

    /// Continues the session at the place at which a killed process stopped.
    pub fn recover(&mut self, found: KilledSession) {
        self.guests.earlier = Arc::new(self.state.classes.by_id());
        for number in found.guests() {
            let _ = self.guests.source(number, &mut self.state.stats);
        }
        let texts = Arc::clone(&self.guests.earlier);
        for relay in &mut self.relays {
            relay.texts.table = Table::recovered(Arc::clone(&texts));
        }
        self.for_each_source(|state, source| found.begin(source, &mut state.stats[source.stats]));
        self.found = Some(found);
    }

    /// Returns the state of a client's ring at the last commit of the killed process.
    pub fn committed(&self, client: u32) -> Option<Committed> {
        let found = self.found.as_ref()?;
        Some(match self.relays.get(client as usize) {
            Some(relay) => found.committed(relay.domain, relay.number),
            None => found.committed(Domain::Guest, client),
        })
    }

    /// Counts events that were lost in processes without a client.
    pub fn unattached(&mut self, more: u64) {
        let counted = self.found.as_mut().map_or(0, KilledSession::take_unattached);
        self.state.unattached.add(more.saturating_sub(counted));
    }

    /// Drains one packet of a client.
    pub fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        if self.finished {
            consumer.set_write_failed(true);
            return Drained::default();
        }
        let Engine { state, guests, simple, relays, recorder, .. } = self;
        let (source, guests) = match relays.get_mut(client as usize) {
            Some(relay) => (relay, Some(guests)),
            None => match guests.source(client, &mut state.stats) {
                Some(source) => (source, None),
                None => return Drained::default(),
            },
        };
        source.counter = consumer.counter();
        let whose = source.stats;
        let result = run(recorder.as_ref(), simple, Turn { state, source, guests, consumer });
        if result.is_ok() && !consumer.is_paused() && !consumer.has_more() {
            // The ring is empty, so its writer no longer counts as failing, even if the unwritten records
            // were discarded.
            self.state.failures.worked(whose);
        }
        self.account(whose, result)
    }

    /// Notes the heads of the host rings. If a snapshot is requested, begins the snapshot.
    pub fn begin_pass(&mut self) {
        self.state.is_partial = false;
        let part = LOG_WORDS / self.guests.number().max(1);
        (self.state.log_words, self.state.log_part) = (LOG_WORDS, (part, self.state.stats.len()));
        self.note_heads();
        let Some(dir) = self.recorder.as_mut().and_then(Recorder::begin) else {
            return;
        };
        self.for_each_source(|state, source| {
            source.restart();
            state.stats[source.stats].restart();
        });
        let state = &mut self.state;
        let begun = dir.and_then(|dir| {
            dir.create(HIDDEN).map_err(WriteFailed::on("create", dir.path()))?;
            state.begin_trace(dir, random_uuid())
        });
        if let Err(failed) = begun {
            self.failed(SESSION_FILES, failed);
        }
    }

    /// Notes the present heads of the host rings.
    fn note_heads(&mut self) {
        for (consumer, _) in &mut self.hosts {
            consumer.note_head();
        }
    }

    /// Makes a pass only over the host rings. The drain loop may be in the middle of a full pass. In this
    /// case, the rest of the full pass counts as partial, too.
    pub fn pass(&mut self) {
        if self.recorder.is_some() {
            // A partial pass would complete a snapshot that lacks the guests' rings.
            return;
        }
        self.state.is_partial = true;
        self.note_heads();
        self.end_pass();
    }

    /// Drains the host rings up to the noted heads, and writes the accounts.
    pub fn end_pass(&mut self) {
        if self.finished {
            return;
        }
        for i in 0..self.hosts.len() {
            let whose = self.hosts[i].1.stats;
            let mut drained = Drained { words: 1, more: true };
            // The noted heads bound this loop.
            while drained.more && drained.words > 0 {
                let result = self.drain_host(i);
                drained = self.account(whose, result);
            }
        }
        self.simple.end_pass(&mut self.state);
        if self.recorder.as_ref().is_some_and(|recorder| recorder.taking) {
            self.end_snapshot();
        }
        self.state.write_accounts(ticks());
        self.state.flush();
    }

    /// If no ring gets a record, returns the time until a pass has work again. The accounts are due at that
    /// time. Returns zero if the last pass found records.
    pub fn quiet_for(&self) -> Duration {
        let Engine { state, hosts, recorder, relays, .. } = self;
        let sources =
            hosts.iter().map(|(_, source)| source).chain(relays).chain(self.guests.iter());
        let is_busy = hosts.iter().any(|(host, _)| !host.is_quiet())
            || sources.into_iter().any(|source| source.has_rest)
            || recorder.as_ref().is_some_and(Recorder::is_busy)
            || state.failures.is_failing()
            || state.trace.has_waiting();
        match (self.finished, is_busy) {
            (true, _) => Duration::MAX,
            (false, true) => Duration::ZERO,
            (false, false) => state.accounts_due_in(ticks()),
        }
    }

    /// Begins a new generation of guests, and returns the epoch of this generation. `known` describes the
    /// clients. If the rings already hold records, `found` is the earliest raw time at which the machine may
    /// have started to run.
    pub fn begin_generation(
        &mut self,
        least: u32,
        known: &[KnownClient<'_>],
        found: Option<u64>,
    ) -> u32 {
        let Engine { state, guests, .. } = self;
        let now = ticks();
        for source in guests.iter_mut() {
            // The counters are written before the new epoch begins, so that a recovery knows the losses of
            // the old generation. If the disk is full, a later packet carries these counters.
            let _ = write_counters(state, source, now);
        }
        let epoch = least.max(state.clocks.epoch().saturating_add(1));
        state.clocks.begin_epoch(epoch, found);
        state.generations = state.generations.saturating_add(1);
        for source in guests.iter_mut() {
            source.begin_generation(state.generations);
            state.stats[source.stats].begin_generation();
        }
        for known in known {
            let Some(source) = guests.source(known.client, &mut state.stats) else { continue };
            let stats = &mut state.stats[source.stats];
            for (number, text) in known.texts.iter().enumerate() {
                // A client has at most this number of texts, so further texts are not even parsed.
                let adopted = match number < MAX_CLIENT_SCHEMAS {
                    true => source.texts.adopt(&mut state.classes, text),
                    false => Err(Fault::SchemaTable),
                };
                if let Err(fault) = adopted {
                    stats.fault(fault);
                }
            }
            if known.token != 0 {
                let holder = Holder::of(known);
                stats.name.clone_from(&holder.name);
                source.restore(holder);
            }
        }
        state.classes.wanted.publish();
        epoch
    }

    /// Calls `each` with every descriptor of the session's files, but not with the descriptor of the
    /// session's directory.
    pub fn each_descriptor(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        if let Some(files) = &self.state.trace.files {
            files.each_descriptor(each);
        }
        if let Some(file) = &self.simple.file {
            each(file.as_fd());
        }
    }

    /// Calls `each` with a description of each client of the guests.
    pub fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        let Engine { state, guests, .. } = self;
        for source in guests.iter_mut() {
            let (clock, name) = match (&source.lease, &source.holder) {
                (None, Some(holder)) => (holder.clock, &holder.name),
                _ => {
                    let kind =
                        source.clock.map_or(ClockKind::Tsc, |clock| state.clocks.kind(clock));
                    (kind, &state.stats[source.stats].name)
                }
            };
            let texts = &source.texts.table.texts(&state.classes)[..];
            each(&KnownClient { client: source.number, token: 0, clock, name, texts });
        }
    }

    /// Switches the events of guests that match a pattern. Returns the number of seen names that match the
    /// pattern.
    pub fn set_guest_events(&mut self, pattern: &Pattern, on: bool) -> Result<usize, TooManyRules> {
        let about = self.state.classes.wanted.set(pattern, on)?;
        self.guests.iter_mut().for_each(|source| source.texts.forget());
        Ok(about)
    }

    /// Formats a human-readable status.
    pub fn describe_trace(&mut self, text: &mut String) {
        let Engine { state, guests, simple, hosts, recorder, .. } = self;
        // Writing to a String does not fail.
        let _ = state.describe_files(text, recorder.as_ref());
        let _ = writeln!(text, "{simple}");
        for (consumer, source) in hosts {
            let stats = &state.stats[source.stats];
            if consumer.ring.is_claimed() || stats.is_used() {
                let _ = consumer.describe(text, source, stats, &state.classes);
            }
        }
        for source in guests.iter_mut() {
            let _ = writeln!(text, "guest client {}: {}", source.number, state.stats[source.stats]);
        }
    }

    /// Drains one packet of a host ring.
    fn drain_host(&mut self, i: usize) -> Result<Drained, WriteFailed> {
        let Engine { state, guests, simple, hosts, recorder, .. } = self;
        let (host, source) = &mut hosts[i];
        let Some(mut consumer) = host.consumer() else {
            return Ok(Drained::default());
        };
        let guests = Some(guests);
        run(recorder.as_ref(), simple, Turn { state, source, guests, consumer: &mut consumer })
    }

    fn account(&mut self, whose: usize, result: Result<Drained, WriteFailed>) -> Drained {
        match result {
            Ok(drained) => {
                if drained.words > 0 {
                    self.state.is_ahead = true;
                    self.state.failures.worked(whose);
                }
                drained
            }
            Err(failed) => {
                self.failed(whose, failed);
                Drained::default()
            }
        }
    }

    /// Counts a failed write. A failed write ends a snapshot, but the rings stay in use.
    fn failed(&mut self, whose: usize, failed: WriteFailed) {
        self.state.failures.failed(whose, &failed);
        let first = match &mut self.recorder {
            Some(recorder) => &mut recorder.failed,
            None => &mut self.failed,
        };
        first.get_or_insert(failed);
    }

    /// Completes the snapshot, unless a ring still has records for the snapshot.
    fn end_snapshot(&mut self) {
        let mut unfinished = false;
        self.for_each_source(|_, source| unfinished |= source.has_rest);
        if unfinished && self.recorder.as_ref().is_some_and(|recorder| recorder.failed.is_none()) {
            return;
        }
        if self.state.trace.is_open() {
            let written = self.write_all_counters();
            self.close_all();
            if let Err(failed) = written.and_then(|()| self.state.write_end()) {
                self.failed(SESSION_FILES, failed);
            }
        }
        self.state.trace.files = None;
        if let Some(recorder) = &mut self.recorder {
            recorder.end();
        }
    }

    fn for_each_source(&mut self, mut f: impl FnMut(&mut TraceState, &mut Source)) {
        let Engine { state, guests, hosts, relays, .. } = self;
        let hosts = hosts.iter_mut().map(|(_, source)| source).chain(relays);
        hosts.chain(guests.iter_mut()).for_each(|source| f(state, source));
    }

    /// Writes the last counters of all sources. Stops at the first failed write.
    fn write_all_counters(&mut self) -> Result<(), WriteFailed> {
        let now = ticks();
        let mut written = Ok(());
        self.for_each_source(|state, source| {
            if written.is_ok() {
                written = write_counters(state, source, now);
            }
        });
        written
    }

    fn close_all(&mut self) {
        self.for_each_source(|state, source| {
            if let (Some(stream), Some(files)) = (source.file.stream.take(), &mut state.trace.files)
            {
                // The error is ignored: a file that cannot be cut is still valid, because its filler covers
                // the rest of the file.
                let _ = stream.close(files);
            }
        });
    }

    /// Ends the session: writes the rest of the host rings, the last counters and the last maps. After a
    /// failure, the caller may call this method again.
    pub fn finish(&mut self) -> Result<(), WriteFailed> {
        if self.recorder.is_some() {
            // A flight recorder writes no records at its end, so the contents of its rings are lost.
            self.finished = true;
            return Ok(());
        }
        self.state.trace.block_until_drained();
        self.begin_pass();
        if let Err(failed) = self.finish_streams() {
            self.simple.end_pass(&mut self.state);
            return Err(failed);
        }
        self.close();
        self.state.clocks.refresh();
        if !self.state.trace.is_open() {
            return Ok(());
        }
        self.state.write_end()?;
        self.state.trace.end()
    }

    /// Ends a session that cannot be finished. The remaining records of the host rings count as lost, and the
    /// engine writes these losses as far as possible.
    pub fn give_up(&mut self) {
        let Engine { state, hosts, .. } = self;
        for (host, source) in hosts {
            if let Some(mut consumer) = host.consumer() {
                state.fit_stage(&consumer);
                consumer.discard_unread(&mut state.stage);
                Turn { state, source, guests: None, consumer: &mut consumer }.note();
            }
        }
        // A failed write of one source does not stop the other sources, because the files of the other
        // sources may have room.
        let now = ticks();
        self.for_each_source(|state, source| {
            let _ = write_counters(state, source, now);
        });
        self.close();
        if self.state.trace.is_open() {
            let _ = self.state.write_end();
            let _ = self.state.trace.end();
        }
    }

    /// Prepares for the last passes. No producer runs during the last passes.
    pub fn begin_last_pass(&mut self) {
        self.state.trace.block_until_drained();
    }

    /// Closes all files of events. After this call, the session records nothing.
    fn close(&mut self) {
        self.finished = true;
        self.simple.close(&mut self.state);
        self.close_all();
    }

    fn finish_streams(&mut self) -> Result<(), WriteFailed> {
        for i in 0..self.hosts.len() {
            // The noted heads bound this loop.
            while let Drained { more: true, words: 1.. } = self.drain_host(i)? {}
        }
        self.write_all_counters()
    }
}

/// Runs one ring's turn in a pass. The turn takes a packet out of the ring. But if a flight recorder has no
/// snapshot in progress, the turn only reads the ring's schemas.
fn run(
    recorder: Option<&Recorder>,
    simple: &mut SimpleFile,
    mut turn: Turn<'_, '_>,
) -> Result<Drained, WriteFailed> {
    let Some(recorder) = recorder else {
        let drained = turn.drain()?;
        if drained.words > 0 {
            simple.take(turn.source.domain, turn.state);
        }
        return Ok(drained);
    };
    if !turn.state.trace.is_open() || recorder.failed.is_some() {
        turn.learn()?;
        turn.note_holders();
        return Ok(Drained::default());
    }
    let until = match turn.source.until {
        Some(until) => until,
        None => {
            turn.consumer.rewind();
            // The snapshot's end in the ring is noted only when the snapshot begins, so that a producer
            // cannot make the snapshot endless.
            turn.consumer.head()
        }
    };
    turn.source.until = Some(until);
    turn.consumer.up_to(until);
    turn.drain()
}
