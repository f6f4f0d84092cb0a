//! The PCI devices on a bus of Cloud Hypervisor's shape.

use crate::common;
use std::sync::{Arc, Mutex};

use common::{MAGIC, POINT, geometry, kick, start};
use hypertrace_device::{PCI_DEVICE, PCI_VENDOR};
use hypertrace_vmm::test_utils::FakeVm;
use hypertrace_vmm::{Counter, Hypertrace, Region, Saved};
use vmm_shapes::pci_bus::{PciBus, PciDevice};
use vmm_shapes::{ChipDevice, FunctionDevice};

/// First addresses of the BARs in the order of `Region::ALL`, and the address to which the guest moves the
/// BAR of the registers.
const BASES: [u64; 4] = [0xe000_0000, 0xe010_0000, 0xe020_0000, 0x10_0000_0000];
const MOVED: u64 = 0xe030_0000;
const CONTROL: u64 = BASES[Region::Control as usize];

/// Config space by dword: COMMAND, and BAR 2.
const COMMAND: usize = 1;
const BAR2: usize = 6;
const MEMORY_SPACE: u32 = 0b10;

fn bars() -> impl Iterator<Item = (u64, u64)> {
    BASES.into_iter().zip(Region::ALL.map(|region| geometry().bar_size(region)))
}

fn function_device(hypertrace: &Hypertrace) -> (Arc<FakeVm>, PciBus<FunctionDevice>) {
    let machine = Arc::new(FakeVm::default());
    let mut device = FunctionDevice::new(hypertrace.device(), machine.clone()).unwrap();
    device.allocate_bars(|bar| BASES[bar.region as usize]);
    (machine, PciBus::new(device, bars()))
}

/// Enables the device as Linux does, and makes a point, a KICK and a load.
fn use_device(bus: &mut PciBus<impl PciDevice>) {
    assert_eq!(bus.config_read(0), u32::from(PCI_VENDOR) | u32::from(PCI_DEVICE) << 16);
    bus.config_write(COMMAND, MEMORY_SPACE);
    let mut magic = [0; 8];
    bus.read(BASES[Region::Config as usize] + MAGIC.0, &mut magic);
    assert_eq!(magic, MAGIC.1);
    bus.write(CONTROL + POINT, &7u64.to_le_bytes());
    bus.write(CONTROL + kick(), &0u64.to_le_bytes());
}

/// Moves the registers as Linux does: while memory space is off.
fn move_registers(bus: &mut PciBus<impl PciDevice>) {
    bus.config_write(COMMAND, 0);
    bus.config_write(BAR2, u32::MAX);
    assert_eq!(u64::from(!bus.config_read(BAR2)) + 1, geometry().bar_size(Region::Control));
    bus.config_write(BAR2, MOVED as u32);
    bus.config_write(COMMAND, MEMORY_SPACE);
}

#[test]
fn a_function_takes_points_before_and_after_its_registers_move() {
    let (_dir, hypertrace) = start(None);
    let (machine, mut bus) = function_device(&hypertrace);

    use_device(&mut bus);
    let armed = machine.armed();
    move_registers(&mut bus);
    bus.write(MOVED + POINT, &8u64.to_le_bytes());
    // No BAR is at the old address any more.
    bus.write(CONTROL + POINT, &9u64.to_le_bytes());

    let at = CONTROL + kick();
    assert!(armed.contains(&at));
    let shift = MOVED - CONTROL;
    let moved: Vec<_> = armed.iter().map(|gpa| gpa + shift).collect();
    assert_eq!(machine.armed(), moved);
    assert_eq!(hypertrace.chip().count(Counter::KickTrapped), 1);
    assert_eq!(hypertrace.finish().unwrap().reference_points, 2);
}

#[test]
fn the_bars_of_a_function_take_points_while_its_device_is_locked() {
    let (_dir, hypertrace) = start(None);
    let (_machine, mut bus) = function_device(&hypertrace);
    bus.config_write(COMMAND, MEMORY_SPACE);
    let bars = bus.device.bars();
    let bus = Mutex::new(bus);

    let locked = bus.lock().unwrap();
    std::thread::scope(|scope| {
        for vcpu in 0..u64::from(common::VCPUS) {
            let bars = &bars;
            scope.spawn(move || bars.write(CONTROL, 8 * vcpu, &vcpu.to_le_bytes()));
        }
    });
    drop(locked);

    assert_eq!(hypertrace.finish().unwrap().reference_points, u64::from(common::VCPUS));
}

#[test]
fn a_function_without_memory_space_is_not_mapped() {
    let (_dir, hypertrace) = start(None);
    let (machine, mut bus) = function_device(&hypertrace);

    bus.config_write(COMMAND, MEMORY_SPACE);
    let on = common::placed(&machine);
    let is_read_only = machine.load(BASES[0], &mut [0]) && !machine.store(BASES[0], &[1]);
    bus.config_write(COMMAND, 0);

    assert_eq!(on.0.len(), 3);
    assert!(on.0.contains(&(Region::Config, BASES[0])) && is_read_only);
    assert_eq!(common::placed(&machine), common::Placed::default());
}

#[test]
fn a_function_works_again_after_a_reset() {
    let (_dir, hypertrace) = start(None);
    let (_machine, mut bus) = function_device(&hypertrace);
    use_device(&mut bus);

    bus.device.function().reset();
    use_device(&mut bus);

    assert_eq!(hypertrace.finish().unwrap().reference_points, 2);
}

#[test]
fn a_function_that_is_made_anew_at_a_reboot_continues_the_session() {
    let (_dir, hypertrace) = start(None);
    let (_machine, mut bus) = function_device(&hypertrace);
    use_device(&mut bus);
    drop(bus);

    hypertrace.chip().reset();
    let (machine, mut bus) = function_device(&hypertrace);
    use_device(&mut bus);

    assert_eq!(machine.mapped().len(), 3);
    assert_eq!(hypertrace.finish().unwrap().reference_points, 2);
}

#[test]
fn a_function_is_restored_with_its_bars_where_the_bus_had_them() {
    let (_dir, hypertrace) = start(None);
    let (machine, mut bus) = function_device(&hypertrace);
    use_device(&mut bus);
    move_registers(&mut bus);
    let pci = Some(bus.device.function().save());
    let saved = Saved { pci, ..hypertrace.save().unwrap() };
    assert_eq!(hypertrace.finish().unwrap().reference_points, 1);

    let json = serde_json::to_string(&saved).unwrap();
    let saved: Saved = serde_json::from_str(&json).unwrap();
    let (_dir, hypertrace) = start(Some(&saved));
    let (restored, bus) = function_device(&hypertrace);
    bus.device.function().load(saved.pci.as_ref().unwrap()).unwrap();
    bus.device.bars().write(MOVED, POINT, &8u64.to_le_bytes());

    assert_eq!(common::placed(&restored), common::placed(&machine));
    assert_eq!(hypertrace.finish().unwrap().reference_points, 1);
}

#[test]
fn a_bar_that_the_bus_cannot_move_is_where_it_was() {
    let (_dir, hypertrace) = start(None);
    let (machine, mut bus) = function_device(&hypertrace);
    use_device(&mut bus);
    let before = (common::placed(&machine), bus.config_read(BAR2));
    bus.ram = MOVED..MOVED + 1;

    move_registers(&mut bus);
    bus.write(CONTROL + POINT, &8u64.to_le_bytes());

    assert_eq!((common::placed(&machine), bus.config_read(BAR2)), before);
    assert_eq!(hypertrace.finish().unwrap().reference_points, 2);
}

#[test]
fn a_chip_in_the_vmms_own_config_space_takes_points_before_and_after_its_registers_move() {
    let (_dir, hypertrace) = start(None);
    let machine = Arc::new(FakeVm::default());
    let device = ChipDevice::new(hypertrace.device().clone(), machine.clone(), BASES).unwrap();
    let mut bus = PciBus::new(device, bars());

    use_device(&mut bus);
    move_registers(&mut bus);
    bus.write(MOVED + POINT, &8u64.to_le_bytes());
    hypertrace.chip().reset();
    bus.write(MOVED + POINT, &9u64.to_le_bytes());

    assert!(machine.armed().contains(&(MOVED + kick())));
    assert_eq!(machine.armed().len(), 1);
    assert_eq!(hypertrace.chip().count(Counter::KickTrapped), 1);
    assert_eq!(hypertrace.finish().unwrap().reference_points, 3);
}

#[test]
fn a_chip_in_the_vmms_own_config_space_has_the_ids_and_sizes_of_the_function() {
    let (_dir, hypertrace) = start(None);
    let (_, mut function) = function_device(&hypertrace);
    let (_dir, hypertrace) = start(None);
    let machine = Arc::new(FakeVm::default());
    let mut chip = ChipDevice::new(hypertrace.device().clone(), machine, BASES).unwrap();

    for register in 4..10 {
        function.device.write_config_register(register, 0, &[0xff; 4]);
        chip.write_config_register(register, 0, &[0xff; 4]);
    }

    for register in 0..16 {
        let (chip, function) =
            (chip.read_config_register(register), function.config_read(register));
        assert_eq!(chip, function, "register {register}");
    }
}
