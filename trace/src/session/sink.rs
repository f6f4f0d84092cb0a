//! A session in the role of the sink: the device passes the guest's events to the session.

use super::engine::Engine;
use super::handle::{Session, SessionParts};
use crate::events::own;
use hypertrace_abi::event::Words;
use hypertrace_abi::layout::SLOT_WORDS;
use hypertrace_abi::record::{Flags, HEADER_WORDS, REFERENCE_PREFIX_WORDS};
use hypertrace_abi::ring::{Consumer, Emit, NewRecord};
use hypertrace_abi::sink::{
    DrainSink, Drained, EventSink, KnownClient, NameSet, PassConfig, ReferencePoint, SessionInfo,
    Status,
};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Size of the largest reference point in a ring, in words.
const MAX_POINT_WORDS: u64 = (HEADER_WORDS + REFERENCE_PREFIX_WORDS + SLOT_WORDS) as u64;

impl EventSink for Session {
    fn session_info(&self) -> SessionInfo {
        SessionInfo::default().with(|info| {
            info.session = self.uuid();
            info.ring_mode = self.ring_mode();
            info.guest_frequency = self.guest_frequency();
            info.host_frequency = self.host_frequency();
            info.trace_parent = self.parts.trace_parent;
        })
    }

    #[inline]
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        if self.parts.ended.load(Ordering::Relaxed) {
            return Status::Failed;
        }
        let ReferencePoint { client, seq, cpu, guest_time, .. } = *point;
        // The time is never zero, because a ring stores zero for "no emit under way".
        let now = point.host_time.max(1);
        let prefix = [client.into(), cpu.into(), seq.into(), guest_time];
        let mut flags = Flags::REFERENCE_POINT;
        flags.set(Flags::GUEST_HYPERTRACE, own::is_wanted());
        let emit = self.parts.rings.record(
            || now,
            |producer| {
                producer.emit(
                    NewRecord::of_id(point.id, [Words(&prefix), Words(point.words)])
                        .with_flags(flags),
                    || now,
                )
            },
        );
        own::reference_point(point);
        self.parts.triggers.point(point);
        match emit {
            Emit::Recorded => Status::Recorded,
            _ => Status::Failed,
        }
    }

    fn has_room_for_point(&self) -> bool {
        self.parts.rings.has_room(MAX_POINT_WORDS)
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut Draining { parts: &self.parts, engine: self.engine() });
    }
}

/// The drain loop's side of a session, with the engine's lock held.
struct Draining<'s> {
    parts: &'s SessionParts,
    engine: MutexGuard<'s, Engine>,
}

impl DrainSink for Draining<'_> {
    fn begin_generation(&mut self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        self.engine.begin_generation(epoch, known, None)
    }

    fn begin_found(&mut self, epoch: u32, known: &[KnownClient<'_>], since: u64) -> u32 {
        self.engine.begin_generation(epoch, known, Some(since))
    }

    fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        self.engine.known_clients(each);
    }

    fn unattached(&mut self, more: u64) {
        self.engine.unattached(more);
    }

    fn begin_pass(&mut self) -> PassConfig {
        let Draining { parts, engine } = self;
        parts.triggers.pass(|pattern, on| {
            // If the guest has too many rules, the mask stays unchanged.
            let _ = engine.set_guest_events(pattern, on);
        });
        let mask = engine.state.classes.wanted.changed_mask();
        // `woken` is called before the rings are read. If a thread fills its ring after the read, the thread
        // then wakes the loop again.
        parts.rings.woken();
        engine.begin_pass();
        // Triggers that are added later do not matter here, because a new trigger begins a further pass.
        let points = match own::is_wanted() {
            // The host must see the points of all names, because each point is also an event
            // `guest_hypertrace`.
            true => NameSet::ALL,
            false => parts.triggers.names(),
        };
        PassConfig::default().with(|config| {
            config.mask = mask;
            config.points = points;
        })
    }

    fn last_pass(&mut self) {
        self.engine.begin_last_pass();
    }

    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        self.engine.drain(client, consumer)
    }

    fn quiet_for(&mut self) -> Duration {
        match self.parts.rings.wakes() {
            true => self.engine.quiet_for(),
            false => Duration::ZERO,
        }
    }

    fn end_pass(&mut self) {
        self.engine.end_pass();
        if self.engine.recorder.is_some() {
            self.parts.snapshot.notify_all();
        }
    }
}
