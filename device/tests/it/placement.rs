// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Mappings and doorbells of a chip, as plain data for a VMM.

use crate::common;
use common::{chip, chip_of, geometry};
use hypertrace_abi::sink::SessionInfo;
use hypertrace_device::{Chip, ChipConfig, Counter, Memory, Region};
use std::os::unix::fs::FileExt;
use zerocopy::IntoBytes;

#[test]
fn a_region_is_mapped_from_the_file_in_which_its_bytes_are() {
    let (chip, _) = chip();
    chip.write(Region::Data, 8, &[1; 8]);
    chip.write(Region::Rings, 16, &[2; 8]);
    let config = chip.config_bytes().to_vec();
    assert_eq!(config, chip.config_page().words().as_bytes());
    for (region, at, bytes) in [
        (Region::Config, 0, config),
        (Region::Data, 8, vec![1; 8]),
        (Region::Rings, 16, vec![2; 8]),
    ] {
        let mapping = chip.mapping(region, 0xe000_0000).unwrap();
        assert_eq!((mapping.gpa, mapping.size), (0xe000_0000, geometry().bar_size(region)));
        assert_eq!(mapping.is_read_only, region == Region::Config);
        let mut found = vec![0; bytes.len()];
        mapping.file.read_exact_at(&mut found, mapping.file_offset + at).unwrap();
        assert_eq!(found, bytes, "{region:?}");
    }
    assert!(chip.mapping(Region::Control, 0).is_none());
}

#[test]
fn one_doorbell_serves_all_clients_and_works_by_traps_too() {
    let config = ChipConfig::default().with(|config| config.has_doorbells = true);
    let (chip, _) = chip_of(&config, SessionInfo::default());
    let base = 0xe000_0000;
    let kick = chip.doorbell(Region::Control, base).unwrap();
    chip.write(Region::Control, kick - base, &[0; 8]);
    assert_eq!(chip.count(Counter::KickTrapped), 1);
    for region in [Region::Config, Region::Data, Region::Rings] {
        assert_eq!(chip.doorbell(region, base), None);
    }
    let (traps, _) = common::chip();
    assert_eq!(traps.doorbell(Region::Control, base), None, "the configuration has none");
}

#[test]
fn a_closure_wakes_the_drain_loop() {
    let (woken, wakes) = std::sync::mpsc::channel();
    let memory = Memory::anonymous(geometry()).unwrap();
    let woken = std::sync::Mutex::new(woken);
    let wake = move || woken.lock().unwrap().send(()).unwrap();
    let chip = Chip::new(memory, &ChipConfig::default(), common::Recorder::default(), wake);

    chip.write(Region::Control, geometry().kick_offset(), &[0; 8]);

    assert_eq!(wakes.try_iter().count(), 1);
}
