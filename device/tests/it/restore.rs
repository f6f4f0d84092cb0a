// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A device that is restored from its state behaves as it did at the snapshot, and no state can break the
//! device.

use crate::common;
use common::{
    BARS, Call, Front, Known, Recorder, chip, geometry, register, set_mask, trace_parent,
};
use hypertrace_abi::atomic::Ordering::Relaxed;
use hypertrace_abi::config::{CONFIG_WORDS, ConfigPage, RingMode};
use hypertrace_abi::event::Words;
use hypertrace_abi::layout::{MASK_BYTES, PAGE, Region, guest_page, host_page, register::EMIT};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{
    ClientMemory, Consumer, Emit, Lease, LeaseInfo, NewRecord, Producer, ProducerState,
};
use hypertrace_abi::sink::{
    DrainSink, Drained, EventSink, KnownClient, ReferencePoint, SessionInfo, Status,
};
use hypertrace_device::{
    BarChange, BarForm, Chip, ChipConfig, ChipState, DrainPolicy, Geometry, Kick, Memory, Pages,
    PciFunction, PciState, RestoreError,
};
use hypertrace_test_support::wait_until;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// Returns a copy of the memory of `chip`.
fn copy(chip: &Chip) -> Memory {
    let memory = Memory::anonymous(geometry()).unwrap();
    for region in [Region::Data, Region::Rings] {
        let words = |memory: &Memory| memory.region(region).unwrap().words().as_ptr_range();
        assert_ne!(words(&memory), words(chip.memory()));
        let of = chip.memory().region(region).unwrap().words();
        for (to, from) in memory.region(region).unwrap().words().iter().zip(of) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
    memory
}

fn restore(memory: Memory, state: &ChipState) -> Result<(Arc<Chip>, Arc<Recorder>), RestoreError> {
    let sink = Arc::<Recorder>::default();
    let chip = Chip::new(memory, &ChipConfig::default(), sink.clone(), ());
    chip.restore(state, None)?;
    Ok((Arc::new(chip), sink))
}

fn client(chip: &Chip, client: u32) -> ClientMemory<'_> {
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    ClientMemory::of_rings(rings, client, &geometry(), RingMode::Discard).unwrap()
}

fn lease<'m>(chip: &'m Chip, number: u32, state: &'m ProducerState) -> Producer<'m> {
    let info = LeaseInfo { pid: 0, tid: 0, name: "cpu" };
    Producer::lease(client(chip, number), state, Lease::new(77, ClockKind::Tsc, 1, &info), false)
}

/// Emits events at these times. Returns the number of events that the ring took.
fn emit(producer: &Producer<'_>, times: std::ops::Range<u64>) -> usize {
    times
        .filter(|time| producer.emit(NewRecord::of_id(99, Words(&[])), || *time) == Emit::Recorded)
        .count()
}

/// Takes the records out of the sink, and returns their times.
fn times(sink: &Recorder) -> Vec<u64> {
    let records = std::mem::take(&mut *sink.records.lock().unwrap());
    records.into_iter().map(|(_, time)| time).collect()
}

#[test]
fn memory_is_saved_and_loaded_and_zeros_take_none() {
    let regions = [Region::Data, Region::Rings, Region::Config];
    let old = Memory::anonymous(Geometry::default()).unwrap();
    let Geometry { clients, .. } = Geometry::default();
    let rings = Geometry::default().client_offset(clients - 1) + 2 * PAGE;
    let ends = [Geometry::default().data_size(), rings, Geometry::default().bar_size(regions[2])];
    for (region, end) in regions.into_iter().zip(ends) {
        let words = old.region(region).unwrap().words();
        words[(end / 8) as usize - 1].store(7 + region as u64, Relaxed);
    }
    let new = Memory::anonymous(Geometry::default()).unwrap();
    new.region(Region::Rings).unwrap().words()[5].store(1, Relaxed);

    let saved = old.save().unwrap();
    new.load(&saved).unwrap();

    for region in regions {
        let words = |memory: &Memory| -> Vec<u64> {
            let words = memory.region(region).unwrap().words();
            words.iter().map(|word| word.load(Relaxed)).collect()
        };
        assert!(words(&new) == words(&old), "{region:?}");
    }
    // The test counts the blocks of the file, because reading the words would allocate pages.
    let taken = Memory::anonymous(Geometry::default()).unwrap();
    taken.load(&saved).unwrap();
    let file = taken.region(Region::Data).unwrap().file();
    let bytes = file.metadata().unwrap().blocks() * 512;
    assert!(bytes < Memory::file_size(&Geometry::default()) / 4, "{bytes}");
}

#[test]
fn contents_of_a_larger_device_are_an_error() {
    let memory = Memory::anonymous(geometry()).unwrap();
    let size = Memory::file_size(&geometry());
    for offset in [size - 8, u64::MAX] {
        let pages = Pages { offset, words: vec![1, 2] };

        let found = pages.words.iter().fold(offset, |end, _| end.saturating_add(8));

        let error = memory.load(&[pages]).unwrap_err();

        assert_eq!(error, RestoreError::Exceeds { what: "end of its pages", most: size, found });
    }
}

#[test]
fn a_restored_device_continues_registers_rings_and_versions() {
    let (old, old_sink) = chip();
    let known = Known {
        client: 1,
        token: 0,
        clock: ClockKind::MonotonicRaw,
        name: "cpu1".into(),
        texts: vec!["a()".into(), "b()".into()],
    };
    let other = Known { client: 2, texts: vec!["b()".into()], ..known.clone() };
    *old_sink.known.lock().unwrap() = vec![known.clone(), other.clone()];
    let mut mask = [0; MASK_BYTES as usize];
    mask[7] = 1;
    set_mask(&old, &old_sink, mask);
    let private = ProducerState::new();
    let producer = lease(&old, 1, &private);
    emit(&producer, 10..20);
    old.write(Region::Control, register(1, EMIT), &[9; 4]);

    let state = old.state();
    let (new, new_sink) = restore(copy(&old), &state).unwrap();

    assert_eq!(state.texts, ["a()", "b()"], "each once");
    let known = vec![
        Known { client: 0, token: 0, clock: ClockKind::Tsc, name: String::new(), texts: vec![] },
        Known { token: 77, ..known },
        other,
        Known { client: 3, token: 0, clock: ClockKind::Tsc, name: String::new(), texts: vec![] },
    ];
    assert_eq!(*new_sink.known.lock().unwrap(), known);
    assert_eq!(*new_sink.calls.lock().unwrap(), [Call::Generation(1)]);
    assert_eq!(new.config_page().epoch, 1);
    let mut seen = vec![0; new.config_bytes().len()];
    new.read(Region::Config, 0, &mut seen);
    assert_eq!(seen, new.config_bytes());
    // The second half of the store to EMIT.
    new.write(Region::Control, register(1, EMIT) + 4, &[0; 4]);
    assert_eq!(client(&new, 1).host[host_page::REPLY].load(Relaxed) as u32, 0x0909_0909);
    // The sink decides on the mask, which has a new version.
    let rings = new.memory().region(Region::Rings).unwrap().words();
    assert!(rings[..512].iter().all(|word| word.load(Relaxed) == 0));
    assert_eq!(client(&new, 3).host[host_page::MASK_VERSION].load(Relaxed), state.mask_version + 1);
}

#[test]
fn a_guest_that_knows_nothing_of_it_continues_on_the_restored_device() {
    let (mut chip, mut sink) = chip();
    let file = Arc::clone(chip.mapping(Region::Data, 0).unwrap().file);
    let again = || Memory::from_file(geometry(), file.try_clone().unwrap()).unwrap();
    let (guest, private) = (again(), ProducerState::new());
    let rings = guest.region(Region::Rings).unwrap().words();
    let memory = ClientMemory::of_rings(rings, 1, &geometry(), RingMode::Discard).unwrap();
    let info = LeaseInfo { pid: 0, tid: 0, name: "cpu" };
    let producer =
        Producer::lease(memory, &private, Lease::new(77, ClockKind::Tsc, 1, &info), false);
    let (mut emitted, mut lost, mut seen, mut counted) = (vec![1], 0, Vec::new(), 0);
    for round in 0..40 {
        // In the later rounds, the ring becomes full, and events are lost.
        for time in (10_000 * round + 2..).take(9 * round as usize) {
            match producer.emit(NewRecord::of_id(99, Words(&[])), || time) {
                Emit::Recorded => emitted.push(time),
                _ => lost += 1,
            }
        }
        let state = chip.state();
        seen.extend(times(&sink));
        let mut losses = 0;
        for (client, saved) in (0..).zip(&state.clients) {
            let count = sink.losses.lock().unwrap()[&client];
            assert_eq!(count.1, 0, "round {round}: faults of client {client}");
            assert!(client == 1 || saved.position == 0);
            losses += count.0;
        }
        counted += losses;
        (chip, sink) = restore(again(), &state).unwrap();
        assert_eq!(chip.state().epoch, 1 + round as u32);
    }
    assert!(lost > 0, "some round filled the ring");
    assert_eq!((seen, counted), (emitted, lost));
}

#[test]
fn a_live_device_with_a_drain_thread_continues_where_another_one_was() {
    let (old, _) = chip();
    let private = ProducerState::new();
    emit(&lease(&old, 1, &private), 2..9);
    let (state, pages) = (old.state(), old.memory().save().unwrap());
    let (new, sink) = chip();
    let kick = Kick::new().unwrap();
    let policy = DrainPolicy { period: Duration::from_millis(1), ..DrainPolicy::default() };
    let drain = new.drain_thread(&kick, policy, || Ok(())).unwrap();
    wait_until("some passes", || common::passes(&sink) > 2);

    new.restore(&state, Some(&pages)).unwrap();

    drain.finish();
    let head = |chip: &Chip| client(chip, 1).guest[guest_page::HEAD].load(Relaxed);
    assert_eq!((head(&new), head(&old)), (state.clients[1].position, state.clients[1].position));
    let mask_version = state.mask_version + 1;
    let mut expected = state;
    expected.epoch = 1;
    expected.mask_version = mask_version;
    assert_eq!(new.state(), expected);
}

#[test]
fn a_device_that_has_recorded_something_is_not_restored() {
    let (old, _) = chip();
    let private = ProducerState::new();
    emit(&lease(&old, 1, &private), 2..9);
    let (state, pages) = (old.state(), old.memory().save().unwrap());
    let in_use = |client| Err(RestoreError::InUse { client });

    // A point whose value is zero, by EMIT and by the 2016 register.
    for offset in [register(2, EMIT), 2 * 8] {
        let (new, sink) = chip();
        new.write(Region::Control, offset, &[0; 8]);
        assert_eq!(new.restore(&state, Some(&pages)), in_use(2));
        assert_eq!(*sink.calls.lock().unwrap(), []);
        new.reset();
        assert_eq!(new.restore(&state, Some(&pages)), Ok(()), "after a reset it has not");
    }
    // Records that are still in a ring, and records that were drained.
    for is_drained in [false, true] {
        let (new, sink) = chip();
        let private = ProducerState::new();
        emit(&lease(&new, 3, &private), 2..9);
        if is_drained {
            new.drain_all();
        }
        assert_eq!(new.restore(&state, Some(&pages)), in_use(3), "{is_drained}");
        assert!(!sink.calls.lock().unwrap().contains(&Call::Generation(1)));
    }
}

#[test]
fn clients_whose_memory_is_zero_begin_as_after_a_reset() {
    let (old, _) = chip();
    let private = ProducerState::new();
    emit(&lease(&old, 1, &private), 2..9);
    let state = old.state();
    let (new, new_sink) = restore(Memory::anonymous(geometry()).unwrap(), &state).unwrap();
    let private = ProducerState::new();
    let producer = lease(&new, 1, &private);
    assert_eq!(emit(&producer, 20..24), 4);
    assert_eq!(new.state().clients[1].sequence, Some(5));
    assert_eq!(times(&new_sink), [1, 20, 21, 22, 23]);
    assert_eq!(new.config_page().epoch, 1);
}

#[test]
fn memory_of_another_size_is_refused_by_name() {
    let state = chip().0.state();
    let other = geometry();
    let sizes = [
        (Geometry { clients: 5, ..other }, "number of clients", 5, 4),
        (Geometry { ring_bytes: 8192, ..other }, "ring size", 8192, 4096),
        (Geometry { ring_bytes: 8192, block_bytes: 512, ..other }, "ring size", 8192, 4096),
        (Geometry { schema_bytes: 8192, ..other }, "schema log's size", 8192, 4096),
        (Geometry { legacy_args: 3, ..other }, "number of arguments", 3, 4),
    ];
    for (geometry, what, expected, found) in sizes {
        let why = restore(Memory::anonymous(geometry).unwrap(), &state).unwrap_err();
        assert_eq!(why, RestoreError::Differs { what, expected, found });
        let text = format!("the state is of a device whose {what} is {found}, expected {expected}");
        assert_eq!(why.to_string(), text);
    }
}

#[test]
fn a_configuration_that_guests_would_notice_is_refused_by_name() {
    let state = chip().0.state();
    let restore_in = |config: ChipConfig, facts| {
        let memory = Memory::anonymous(geometry()).unwrap();
        let sink = Recorder { facts, ..Recorder::default() };
        Chip::new(memory, &config, sink, ()).restore(&state, None).unwrap_err()
    };
    let restore = |config| restore_in(config, SessionInfo::default());
    let overwrite = SessionInfo::default().with(|info| info.ring_mode = RingMode::Overwrite);
    let what = "ring mode";
    let refused = restore_in(ChipConfig::default(), overwrite);
    assert_eq!(refused, RestoreError::Differs { what, expected: 1, found: 0 });
    // A loop that waits for a KICK would forget guests that do not kick.
    let what = "features word";
    let cheap = ChipConfig::default().with(|config| config.has_doorbells = true);
    assert_eq!(restore(cheap), RestoreError::Differs { what, expected: 5, found: 4 });
    let what = "number of clients of vCPUs";
    let vcpus = ChipConfig::default().with(|config| config.vcpu_clients = 2);
    assert_eq!(restore(vcpus), RestoreError::Differs { what, expected: 2, found: 0 });
}

#[test]
fn a_guest_sees_the_callers_span_after_a_reset_and_after_a_restore_that_of_the_new_session() {
    let chip_of = |digit, state: Option<&ChipState>| {
        let memory = Memory::anonymous(geometry()).unwrap();
        let facts = SessionInfo::default().with(|info| info.trace_parent = trace_parent(digit));
        let sink = Recorder { facts, ..Recorder::default() };
        let chip = Chip::new(memory, &ChipConfig::default(), sink, ());
        if let Some(state) = state {
            chip.restore(state, None).unwrap();
        }
        chip
    };
    // The span that a guest loads.
    let seen = |chip: &Chip| {
        let mut words = [0; CONFIG_WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            chip.read(Region::Config, 8 * i as u64, &mut bytes);
            *word = u64::from_le_bytes(bytes);
        }
        ConfigPage::from_words(&words).trace_parent()
    };
    let chip = chip_of(1, None);
    chip.write(Region::Config, 0x98, &[9; 8]);
    assert_eq!(seen(&chip), trace_parent(1), "a store changes nothing");

    chip.reset();
    assert_eq!(seen(&chip), trace_parent(1));

    let restored = chip_of(2, Some(&chip.state()));
    assert_eq!(seen(&restored), trace_parent(2));
    restored.reset();
    assert_eq!(seen(&restored), trace_parent(2));
}

/// A sink that panics if the chip tells it anything, because a refused restore must not reach the sink.
struct Untold;

impl EventSink for Untold {
    fn session_info(&self) -> SessionInfo {
        SessionInfo::default()
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        panic!("{point:?}")
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Untold {
    fn begin_generation(&mut self, epoch: u32, _known: &[KnownClient<'_>]) -> u32 {
        panic!("the sink has learned of epoch {epoch}")
    }

    fn drain(&mut self, client: u32, _: &mut Consumer<'_>) -> Drained {
        panic!("client {client} is drained")
    }
}

#[test]
fn impossible_numbers_are_refused_by_name_before_the_sink_learns_of_it() {
    let good = chip().0.state();
    let memory = || Memory::anonymous(geometry()).unwrap();
    let lie = |change: &dyn Fn(&mut ChipState)| {
        let mut state = good.clone();
        change(&mut state);
        Chip::new(memory(), &ChipConfig::default(), Untold, ()).restore(&state, None)
    };
    let client = |what, most, found| RestoreError::Client { client: 2, what, most, found };
    let whole = |what, most, found| RestoreError::Exceeds { what, most, found };
    assert!(restore(memory(), &good).is_ok());
    for (why, change) in [
        (
            RestoreError::Version { expected: 2, found: 3 },
            (|s| s.version = 3) as fn(&mut ChipState),
        ),
        (whole("longest text", 1202, 1203), |s| s.texts.push("x".repeat(1203))),
        (client("record number", 5, 6), |s| {
            (s.clients[2].position, s.clients[2].sequence) = (10, Some(6));
        }),
        (client("clock", 1, 2), |s| s.clients[2].clock = 2),
        (client("name's length", 64, 65), |s| s.clients[2].name = "n".repeat(65)),
        (client("number of texts", 0, 1), |s| s.clients[2].texts.push(0)),
        (client("index of a text", 1, 2), |s| {
            s.texts.extend(["a()".to_owned(), "b()".to_owned()]);
            s.clients[2].texts.push(2);
        }),
    ] {
        assert_eq!(lie(&change), Err(why));
    }
}

#[test]
fn a_device_of_any_epoch_and_version_can_be_saved_and_restored_again() {
    let good = chip().0.state();
    for back in 0..3 {
        for (epoch, mask_version) in
            [(u32::MAX, u64::MAX), (1 << 31, 1 << 63), ((1 << 31) - 1, 1 << 62)]
        {
            let (epoch, mask_version) = (epoch - back, mask_version - u64::from(back));
            let mut state = good.clone();
            state.epoch = epoch;
            state.mask_version = mask_version;
            for _ in 0..3 {
                let (new, _) = restore(Memory::anonymous(geometry()).unwrap(), &state).unwrap();
                new.reset();
                let next = new.state();
                assert!(![state.epoch, u32::MAX].contains(&next.epoch), "{state:?}");
                assert_ne!(next.mask_version, state.mask_version);
                state = next;
            }
        }
    }
}

#[test]
fn a_state_that_contradicts_the_memory_counts_as_the_guests_fault() {
    let (old, _) = chip();
    let private = ProducerState::new();
    let producer = lease(&old, 1, &private);
    emit(&producer, 2..30);
    let mut state = old.state();
    let memory = copy(&old);
    // The position is beyond the ring's end.
    state.clients[1].position += 1 << 40;
    // The totals seem to fall.
    state.clients[1].lost = [9; 3];
    let (new, new_sink) = restore(memory, &state).unwrap();
    new.drain_all();
    let (losses, faults) = new_sink.losses.lock().unwrap()[&1];
    assert_eq!(losses, 0, "no event was lost");
    assert!(faults >= 2, "{faults}");
}

#[test]
fn a_state_of_a_hostile_guest_can_always_be_restored() {
    let (old, _) = chip();
    let rings = old.memory().region(Region::Rings).unwrap().words();
    for value in [u64::MAX, 1 << 63, 0x1234_5678_9abc, 1] {
        rings[512..].iter().for_each(|word| word.store(value, Relaxed));
        let state = old.state();
        restore(copy(&old), &state).unwrap().0.state();
    }
}

#[test]
fn bars_are_restored_where_they_were_and_reported() {
    let [.., (Front::Pci(old), _)] = Front::all() else { panic!("no PCI") };
    old.config_write(0x3c, &[9], |_| ());
    let state = old.state();

    let new = PciFunction::new(chip().0);
    let mut changes = Vec::new();
    new.restore(&state, |change| changes.push(change)).unwrap();

    let there = |(region, bar)| BarChange { region, from: None, to: Some(bar) };
    assert_eq!(changes, Region::ALL.into_iter().zip(BARS).map(there).collect::<Vec<_>>());
    assert_eq!(new.find(BARS[3] + 8), Some((Region::Rings, 8)));
    let header = |pci: &PciFunction| {
        let mut header = [0; 64];
        pci.config_read(0, &mut header);
        header
    };
    assert_eq!(header(&new), header(&old));
}

#[test]
fn bits_of_config_space_that_no_guest_can_change_are_refused_by_name() {
    let [.., (Front::Pci(pci), _)] = Front::all() else { panic!("no PCI") };
    let (state, before) = (pci.state(), pci.state());
    // The guest can change all bits of dword 9, the upper half of BAR 4.
    for dword in (0..16).filter(|dword| *dword != 9) {
        let mut lie = state.clone();
        lie.header[dword] ^= 0x100;
        let done = pci.restore(&lie, |_| panic!("nothing changes"));
        let Err(RestoreError::Fixed { offset, expected, found }) = done else { panic!("{done:?}") };
        assert_eq!((offset, expected ^ found), (4 * dword as u64, 0x100));
    }
    assert_eq!(pci.state(), before);
    // BARs of another form.
    let plain = PciFunction::with_form(chip().0, BarForm::Plain32).unwrap();
    let why = plain.restore(&state, |_| ()).unwrap_err();
    assert_eq!(why.to_string(), "config space at 0x14 has the fixed bits 0x8, expected 0x0");
    let mut version = state;
    version.version = 7;
    let why = pci.restore(&version, |_| ()).unwrap_err();
    assert_eq!(why, RestoreError::Version { expected: 2, found: 7 });
}

#[cfg(feature = "serde")]
#[test]
fn states_are_written_and_read_and_unknown_fields_are_errors() {
    let (old, _) = chip();
    let private = ProducerState::new();
    emit(&lease(&old, 1, &private), 2..9);
    let state = old.state();
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<ChipState>(&text).unwrap(), state);
    let more = text.replacen('{', "{\"more\":1,", 1);
    assert!(serde_json::from_str::<ChipState>(&more).is_err());
    let pci = PciFunction::new(old).state();
    let text = serde_json::to_string(&pci).unwrap();
    assert_eq!(serde_json::from_str::<PciState>(&text).unwrap(), pci);
}
