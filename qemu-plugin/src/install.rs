//! Installation of hypertrace's plugin, by the guest and the options of the command line.

use crate::api::Qemu;
use crate::target::Target;
use crate::{device, functions};
use std::error::Error;

/// Installs hypertrace's plugin ([`library!`](crate::library)).
///
/// # Errors
/// If the guest's architecture is not known, an option is wrong, or the device cannot serve this guest.
pub fn install(qemu: &Qemu, options: &[&[u8]]) -> Result<(), Box<dyn Error>> {
    let target = Target::of(&qemu.target)?;
    if let Some(options) = functions::Options::parse(options)? {
        return Ok(functions::install(qemu, target, &options)?);
    }
    Ok(device::install(qemu, target, options)?)
}
