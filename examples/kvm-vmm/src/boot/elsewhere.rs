//! In the place of the guest's initial state on a machine that is not x86-64, for which there is no image.

use hypertrace_guest::Args;
use kvm_ioctls::VcpuFd;

use crate::error::{Error, Unusable};
use crate::vm::Vm;

pub fn load(_: &Vm) -> Result<u64, Error> {
    Err(Unusable::Architecture.into())
}

pub fn write_args(_: &Vm, _: &Args) -> Result<(), Error> {
    Err(Unusable::Architecture.into())
}

pub fn create_vcpu(_: &Vm, _: usize, _: u64) -> Result<VcpuFd, Error> {
    Err(Unusable::Architecture.into())
}
