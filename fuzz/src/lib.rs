//! Inputs of the fuzz targets, and what must hold for each: tested on stable
//! with random inputs, run by libFuzzer with chosen ones.
//!
//! Any bytes are an input. [`chip`] and [`session`] take them as what a guest
//! does ([`op::Op`]) at a device ([`rig::Rig`]) with three clients: 0 keeps no
//! rule, 1 is honest, 2 does nothing; and as what a VMM does to its session
//! ([`vmm::Act`]). [`segment`] takes them as the same of programs whose host dies,
//! [`reader`] and [`resume`] as damage to the files of a session, [`monitor`] as
//! what clients send, [`trace_events`] as a file of declarations.

pub mod chip;
pub mod input;
pub mod meter;
pub mod monitor;
pub mod op;
pub mod reader;
pub mod recorder;
pub mod resume;
pub mod rig;
pub mod segment;
pub mod session;
pub mod simple;
pub mod trace_events;
pub mod vmm;

/// Declared events.
pub mod trace {
    hypertrace_trace::include_events!();
}

#[cfg(test)]
#[path = "../../tests/src/capability.rs"]
mod capability;
