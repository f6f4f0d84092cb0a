//! Target `restore`. Target `restore`. First, the target saves and restores the device between operations of
//! the guest. The guest must not notice this. Then the target damages the device's state. The device must
//! either refuse the damaged state, or restore it. The device's memory has what the hostile client wrote.

use crate::input::Input;
use crate::reader;
use crate::recorder::{Ambush, Recorder};
use crate::rig::{Rig, check_exact};
use crate::setup::{CLIENTS, MAX_PASSES, MAX_STEPS_EACH, Setup, steps};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::ring::ProducerState;
use hypertrace_abi::schema::MAX_TEXT;
use hypertrace_device::{Chip, ChipState, ClientState, Memory, PciFunction, PciState};
use hypertrace_trace::{Output, Session, SessionConfig};
use std::fs::File;
use std::sync::Arc;
use tempfile::TempDir;

/// Number of operations between two snapshots.
const OPS: usize = 60;
/// Number of snapshots of an input.
const SNAPSHOTS: usize = 4;
/// Maximum number of damaged states of an input.
const MAX_LIES: usize = 8;

/// Panics if a restored device loses or invents an event of the honest client, or if a damaged state breaks a
/// promise of the device.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setup = Setup::decode(&mut input);
    let lies = input.bytes(64);
    let (state, pci, file) = continued(&setup, &mut input);
    restore_lies(&setup, &mut Input::new(&lies), state, pci, &file);
}

/// Restores the device several times while its guest runs, and checks the honest client's events. Returns the
/// device's last state, and the file of its memory.
fn continued(setup: &Setup, input: &mut Input<'_>) -> (ChipState, PciState, File) {
    let file = tempfile::tempfile().expect("a temporary file");
    let memory = || {
        let file = file.try_clone().expect("another descriptor");
        Memory::from_file(setup.geometry, file).expect("memory for the rings")
    };
    let guest = Arc::new(memory());
    let ambush = Arc::new(Ambush::default());
    let sink = |()| Arc::new(Recorder::new(guest.clone(), ambush.clone(), setup.session_info()));
    let sinks = [(); 1 + SNAPSHOTS].map(sink);
    let mut chip = Arc::new(Chip::new(memory(), &setup.chip_config(), sinks[0].clone(), ()));
    let private = ProducerState::new();
    let mut rig = Rig::new(chip.clone(), &guest, &private, &ambush);
    for sink in &sinks[1..] {
        rig.act_some(input, OPS, &mut |_| {});
        // The sink's waiting failures are dropped first, because a record that cannot be written would count
        // as lost.
        ambush.give_up();
        let text = serde_json::to_string(&chip.state()).expect("plain data");
        let state: ChipState = serde_json::from_str(&text).expect("its own text");
        chip = Arc::new(Chip::new(memory(), &setup.chip_config(), sink.clone(), ()));
        chip.restore(&state, None).expect("its own state");
        rig.continue_at(chip.clone());
    }
    let account = rig.run(input, &mut |_| {});

    let (mut events, mut points, mut full, mut overwritten) = (Vec::new(), Vec::new(), 0, 0);
    for sink in sinks {
        let delivered = sink.delivered();
        events.extend(delivered.events);
        points.extend(delivered.points);
        full += delivered.losses.full;
        overwritten += delivered.losses.overwritten;
        assert_eq!(delivered.losses.busy, 0);
    }
    check_exact(&account, setup.ring_mode, &events, overwritten, 0);
    assert_eq!((full, points), (account.full, account.points));
    (chip.state(), PciFunction::new(chip).state(), file)
}

/// Restores damaged states on this memory.
fn restore_lies(
    setup: &Setup,
    input: &mut Input<'_>,
    state: ChipState,
    pci: PciState,
    file: &File,
) {
    let mut lie = state;
    for _ in 0..MAX_LIES {
        if input.is_empty() {
            return;
        }
        let text = match input.below(2) {
            0 => flipped(&lie, input),
            _ => {
                invent(&mut lie, input);
                serde_json::to_string(&lie).expect("plain data").into_bytes()
            }
        };
        let Ok(state) = serde_json::from_slice::<ChipState>(&text) else { continue };
        restore_one(setup, &state, file);
        let mut header = pci.clone();
        header.header[input.below(16)] ^= 1 << input.below(32);
        restore_header(setup, &header);
    }
}

/// Returns the state's text with some bytes changed.
fn flipped(state: &ChipState, input: &mut Input<'_>) -> Vec<u8> {
    let mut text = serde_json::to_vec(state).expect("plain data");
    for _ in 0..=input.below(3) {
        let at = usize::from(input.u16()) % text.len();
        text[at] = match input.one_in(2) {
            true => input.u8(),
            // In most places, a digit keeps the JSON text valid.
            false => b'0' + input.u8() % 10,
        };
    }
    text
}

/// Changes one number or text of the state.
fn invent(state: &mut ChipState, input: &mut Input<'_>) {
    let value = input.value();
    let texts = state.texts.len() as u32;
    let client = input.below(state.clients.len().max(1));
    let Some(own) = state.clients.get_mut(client) else { return };
    match input.below(18) {
        0 => own.position = value,
        1 => (own.position, own.sequence) = (value, Some(value / 2)),
        2 => own.sequence = Some(value),
        3 => own.sequence = None,
        4 => own.token = value,
        5 => own.lost = [value; 3],
        6 => own.schemas = value,
        7 => own.clock = value as u32,
        8 => own.name = "\u{e9}".repeat(input.u8().into()),
        9 => own.texts.push(input.u32() % (texts + 1)),
        10 => own.registers = own.registers.map(|_| value),
        11 => state.texts.push(String::from_utf8_lossy(&input.bytes(40)).into_owned()),
        12 => state.texts.push(format!("e{value}(a:u64,b:str)")),
        13 => state.texts.push("x".repeat(MAX_TEXT + usize::from(input.u8()))),
        14 => state.mask_version = value,
        15 => state.epoch = value as u32,
        16 => state.clients.push(ClientState::default()),
        _ => state.ring_bytes = value,
    }
}

/// Restores a state in a session, drains it, and reads the session.
fn restore_one(setup: &Setup, state: &ChipState, file: &File) {
    let dir = TempDir::new().expect("a directory");
    let output = match setup.ring_mode {
        RingMode::Discard => Output::Trace,
        RingMode::Overwrite => Output::Snapshots,
    };
    let out = dir.path().join("s");
    let config = SessionConfig::new(&out).with(|config| {
        config.output = output;
        config.file_bytes = 1 << 16;
        config.host_rings = 1;
        config.host_ring_bytes = 1 << 16;
    });
    let session = Session::create(config).expect("an empty directory");
    let memory = Memory::from_file(setup.geometry, file.try_clone().expect("another descriptor"));
    let memory = memory.expect("memory for the rings");
    let chip = Chip::new(memory, &setup.chip_config(), session.clone(), ());
    if let Err(error) = chip.restore(state, None) {
        return assert!(error.to_string().contains("expected"), "{error}");
    }
    let mut passes = 0;
    while chip.drain_pass_by(MAX_STEPS_EACH, &steps()) {
        passes += 1;
        assert!(passes < MAX_PASSES, "a state keeps the drain busy");
    }
    // The restored guest may be saved again.
    let again = chip.state();
    assert_eq!(again.clients.len(), CLIENTS as usize);
    // The next epoch is greater, unless the numbers of epochs have wrapped around.
    assert!(again.epoch > state.epoch % (1 << 31) && again.epoch != state.epoch);
    let (memory, sink) = recorder(setup);
    let other = Chip::new(memory, &setup.chip_config(), sink, ());
    other.restore(&again, None).expect("a device's own state");
    let summary = session.finish().expect("nothing keeps it from being written");
    if output == Output::Trace {
        let read = reader::read(&out).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(read as u64, summary.records);
    }
}

/// Returns memory of zeros, and a sink for it.
fn recorder(setup: &Setup) -> (Memory, Recorder) {
    let memory = || Memory::anonymous(setup.geometry).expect("memory for the rings");
    (memory(), Recorder::new(Arc::new(memory()), Arc::default(), setup.session_info()))
}

/// Restores the state of config space. Afterwards, config space either has the restored state, or is
/// unchanged.
fn restore_header(setup: &Setup, header: &PciState) {
    let (memory, sink) = recorder(setup);
    let chip = Chip::new(memory, &setup.chip_config(), sink, ());
    let function = PciFunction::new(Arc::new(chip));
    let mut changes = 0;
    match function.restore(header, |_| changes += 1) {
        Ok(()) => assert_eq!(function.state(), *header),
        Err(error) => {
            assert!(error.to_string().contains("expected") && changes == 0, "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn a_restored_device_breaks_no_promise(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            run(&bytes);
        }
    }

    #[test]
    fn no_bytes_are_an_input() {
        run(&[]);
    }

    #[test]
    fn every_byte_of_a_state_may_be_another_one() {
        let setup = Setup::decode(&mut Input::new(&[0]));
        let ops: Vec<u8> =
            [36, 20, 26, 2, 0, 18, 1, 37, 30, 3, 36, 20, 23, 31, 2, 36, 9, 38].repeat(9);
        let (state, _, file) = continued(&setup, &mut Input::new(&ops));
        let text = serde_json::to_vec(&state).unwrap();
        let mut restored = 0;
        for at in 0..text.len() {
            for flip in [1, 2, 4, 0x10, 0x80] {
                let mut text = text.clone();
                text[at] ^= flip;
                if let Ok(state) = serde_json::from_slice(&text) {
                    restored += 1;
                    restore_one(&setup, &state, &file);
                }
            }
        }
        assert!(restored > 100, "{restored}");
    }
}
