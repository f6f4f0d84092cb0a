//! Installation of hypertrace's plugin. The guest and the options of the command line decide which parts are
//! installed.

use crate::api::{Block, Events, Qemu};
use crate::device::{self, Device};
use crate::functions::{self, Functions};
use crate::target::Target;
use std::error::Error;
use std::ffi::c_uint;
use std::marker::PhantomData;

/// Installs hypertrace's plugin ([`library!`](crate::library)): a function trace, the device of a program, or
/// both.
///
/// QEMU loads a library only once, even if several options `-plugin` name the library, and keeps only one
/// callback for each event.
///
/// # Errors
/// If the guest's architecture is not known, an option is wrong, or the device cannot serve this guest.
pub fn install(qemu: &Qemu, options: &[&[u8]]) -> Result<(), Box<dyn Error>> {
    let target = Target::of(&qemu.target)?;
    let is_of_device = |option: &&[u8]| option.starts_with(b"segment=");
    let (of_device, others): (Vec<&[u8]>, Vec<&[u8]>) =
        options.iter().copied().partition(is_of_device);
    let Some(of_functions) = functions::Options::parse(&others)? else {
        device::install(qemu, target, options)?;
        register::<Device>(qemu);
        return Ok(());
    };
    // In a whole machine, a device model of QEMU takes the place of this device, so the environment is
    // ignored.
    let has_device = !of_device.is_empty() || !qemu.is_machine && device::is_in_environment();
    // The device is installed first: `functions::install` makes a directory, and the directory would be left
    // over if the device failed afterwards.
    if has_device {
        device::install(qemu, target, &of_device)?;
    }
    functions::install(qemu, target, &of_functions)?;
    qemu.on_flush::<Functions>();
    if qemu.is_machine {
        qemu.on_vcpu_start::<Functions>();
    }
    if has_device {
        register::<Both<Functions, Device>>(qemu);
    } else {
        register::<Functions>(qemu);
    }
    Ok(())
}

fn register<P: Events>(qemu: &Qemu) {
    qemu.on_translation::<P>();
    qemu.on_vcpu_end::<P>();
    qemu.on_end::<P>();
}

/// The callbacks of two parts of the plugin: each event goes to both parts.
struct Both<A, B>(PhantomData<(A, B)>);

impl<A: Events, B: Events> Events for Both<A, B> {
    fn translated(block: &Block) {
        A::translated(block);
        B::translated(block);
    }

    fn vcpu_ended(vcpu: c_uint) {
        A::vcpu_ended(vcpu);
        B::vcpu_ended(vcpu);
    }

    fn ended() {
        A::ended();
        B::ended();
    }
}
