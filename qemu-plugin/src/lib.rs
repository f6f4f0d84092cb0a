//! The emulator side of hypertrace: a TCG plugin for QEMU user mode.
//!
//! A program that is emulated finds its segment as it does natively. Where it
//! makes an acknowledged reference point it stores to a register of the segment
//! in a form that no other code has ([`hypertrace_abi::layout::mark`]). This
//! plugin knows that form when it translates, has QEMU call back after that one
//! instruction, and is the device then: on the vCPU's thread, with the guest
//! stopped after its store, with no signal and no system call. Nothing else is
//! instrumented.
//!
//! ```text
//! translate    marker    the marked stores of a block
//! callback     device    EMIT, LEASE, KICK: what a chip does with them
//!                place   where in the segment an address is
//!                relay   the vCPU's own ring in the segment
//!              attached  the segment, mapped
//! ```
//!
//! One library serves plugin API 1 (QEMU 7.2) and 2 to 6: `api` distinguishes them
//! when it is loaded.

#[cfg(not(test))]
mod api;
#[cfg(not(test))]
mod install;

// The unit tests are a program with no QEMU to call: they see what needs none.
#[cfg_attr(test, allow(dead_code))]
mod attached;
#[cfg_attr(test, allow(dead_code))]
mod counts;
#[cfg_attr(test, allow(dead_code))]
mod device;
mod marker;
#[cfg_attr(test, allow(dead_code))]
mod place;
#[cfg_attr(test, allow(dead_code))]
mod relay;
