//! A sink that keeps what the honest client sends, checks what it may rely on,
//! and changes the hostile client's memory while it is being read.

use crate::bytes::Bytes;
use crate::honest::Kept;
use crate::world::area;
use crate::{HONEST, HOSTILE, Setup};
use hypertrace_abi::layout::SLOT_WORDS;
use hypertrace_abi::record::{Flags, id};
use hypertrace_abi::ring::{Consumer, FAULT_KINDS, Flow};
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{Drained, EventSink, ReferencePoint, Status};
use hypertrace_device::{Memory, RingMode};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// Records that it takes in one drain.
const PACKET: u64 = 24;

pub struct Keeper {
    guest: Arc<Memory>,
    setup: Setup,
    /// Words of the hostile client's area, and values.
    meddling: Vec<(usize, u64)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kept: Kept,
    known: Vec<u32>,
    meddled: usize,
    visited: u64,
}

impl Keeper {
    pub fn new(guest: Arc<Memory>, setup: Setup, bytes: &mut Bytes<'_>) -> Keeper {
        let count = bytes.below(16);
        let meddling = (0..count).map(|_| (bytes.short().into(), bytes.number())).collect();
        Keeper { guest, setup, meddling, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What arrived so far.
    pub fn kept(&self) -> Kept {
        self.state().kept.clone()
    }

    fn meddle(&self, turn: usize) {
        if let Some((word, value)) = self.meddling.get(turn % self.meddling.len().max(1)) {
            let area = area(&self.guest, HOSTILE);
            area[word % area.len()].store(*value, Relaxed);
        }
    }
}

impl EventSink for Keeper {
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        let mut state = self.state();
        let turn = state.meddled;
        state.meddled += 1;
        let before = point.words.to_vec();
        self.meddle(turn);
        assert_eq!(before, point.words, "a copy that the guest can change");
        assert!(point.words.len() <= SLOT_WORDS);
        if point.id == id_of("honest_point(n:u64)")
            && point.client == HONEST
            && self.setup.contained
        {
            state.kept.points.push(point.words[0]);
        }
        Status::Recorded
    }

    fn drain(&self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        let mut state = self.state();
        let State { kept, known, meddled, visited } = &mut *state;
        let honest = client == HONEST && self.setup.contained;
        let turn = Cell::new(*meddled);
        let meddle = || {
            self.meddle(turn.get());
            turn.set(turn.get() + 1);
        };

        let mut texts = 0;
        while texts < 64
            && let Some(text) = consumer.next_schema()
        {
            texts += 1;
            if honest {
                known.push(text.id);
            }
            meddle();
        }
        consumer.commit_schemas();

        let most = consumer.max_payload_words();
        let mut stage = vec![0; consumer.stage_words()];
        let (mut taken, mut words) = (0, 0);
        let mut payload = vec![0; most];
        let pulled = consumer.pull(&mut stage, |_, record| {
            if taken == PACKET {
                return Flow::Stop;
            }
            taken += 1;
            let len = record.payload.len();
            assert!(len <= most && len == usize::from(record.header.words));
            words += 2 + len as u64;
            record.payload.copy_to(&mut payload);
            if honest && record.header.id != id::LEASE {
                assert!(known.contains(&record.header.id), "a record without its schema");
                assert_eq!((len, record.header.flags), (1, Flags::empty().bits()));
                kept.events.push(payload[0]);
            }
            meddle();
            Flow::Taken
        });
        *visited += taken;
        assert_eq!(pulled.records, taken);
        if self.setup.mode == RingMode::Discard {
            let ring = crate::guest::geometry().ring_bytes / 8;
            let behind = pulled.end.wrapping_sub(pulled.begin);
            assert!(words <= behind && behind <= ring, "{words} of {behind} of {ring}");
        }
        // Now and then a write fails: all of it comes again.
        if !honest && turn.get() % 7 == 3 {
            consumer.rollback();
        } else {
            consumer.commit();
        }
        let losses = consumer.losses();
        if honest {
            assert_eq!(consumer.faults(), [0; FAULT_KINDS]);
            (kept.full, kept.overwritten) = (losses.full, losses.overwritten);
        }
        *meddled = turn.get() + 1;
        Drained { words: pulled.end.wrapping_sub(pulled.begin), more: pulled.more }
    }
}
