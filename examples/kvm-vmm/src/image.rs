//! The guest's code and its arguments, in RAM.

use hypertrace_guest::{Args, layout};
use object::{Object, ObjectSegment};
use vm_memory::{Bytes, GuestAddress};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::vm::Vm;

/// The ELF file that build.rs links.
static IMAGE: &[u8] = include_bytes!(env!("GUEST_IMAGE"));

/// Writes the image to RAM, and returns its entry point.
pub fn load(vm: &Vm) -> Result<u64, Error> {
    let image = object::File::parse(IMAGE)?;
    for segment in image.segments() {
        vm.ram().write_slice(segment.data()?, GuestAddress(segment.address()))?;
    }
    Ok(image.entry())
}

/// Writes the program's arguments to RAM.
pub fn write_args(vm: &Vm, args: &Args) -> Result<(), Error> {
    Ok(vm.ram().write_slice(args.words().as_bytes(), GuestAddress(layout::ARGS))?)
}
