//! Target `chip`: the device with a sink that checks its calls.

use crate::input::Input;
use crate::recorder::{Ambush, Recorder};
use crate::rig::{Rig, check_exact};
use crate::setup::Setup;
use hypertrace_abi::ring::ProducerState;
use hypertrace_device::Chip;
use std::sync::Arc;

/// Panics if a guest can break a promise of the device.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setup = Setup::decode(&mut input);
    let (memory, guest) = setup.memory();
    let ambush = Arc::new(Ambush::default());
    let sink = Arc::new(Recorder::new(guest.clone(), ambush.clone(), setup.session_info()));
    let chip = Arc::new(Chip::new(memory, &setup.chip_config(), sink.clone(), ()));
    let state = ProducerState::new();
    let account = Rig::new(chip.clone(), &guest, &state, &ambush).run(&mut input, &mut |_| {});

    let delivered = sink.delivered();
    let losses = delivered.losses;
    check_exact(&account, setup.ring_mode, &delivered.events, losses.overwritten, 0);
    assert_eq!((losses.full, losses.busy), (account.full, 0));
    assert_eq!(delivered.points, account.points);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]
        #[test]
        fn a_hostile_client_breaks_no_promise(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            run(&bytes);
        }
    }

    #[test]
    fn no_bytes_are_an_input() {
        run(&[]);
    }
}
