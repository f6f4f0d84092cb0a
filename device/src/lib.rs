//! The hypertrace device: turns guest stores into host trace events.
//!
//! [`Chip`] is the device itself: registers, shared memory, and the host's
//! truth about each client. It knows no bus and no file. It stands behind a
//! [`PciFunction`] or a [`Window`], and hands what it gets to an
//! [`EventSink`](hypertrace_abi::sink::EventSink), usually
//! `hypertrace_trace::Session`:
//!
//! ```text
//! vCPU threads --write--> PciFunction | Window --> Chip --reference_point--> sink
//! drain loop  --------------drain_pass-----------> Chip ------drain--------> sink
//! ```
//!
//! Every call takes `&self` and may come from any thread at any time. What a
//! guest does wrong is counted ([`Counter`]), never an error and never a log
//! line. On the way of a reference point there is no lock, no allocation and
//! no system call.
//!
//! What it does not do: it raises no interrupt, performs no DMA, and never
//! touches guest RAM other than its own two shared regions ([`Memory`]).
#![warn(missing_debug_implementations)]

pub mod adapter;
mod chip;
mod counter;
mod memory;
mod pci;
mod window;

pub use chip::{Chip, ChipConfig, DrainWaker};
pub use counter::{COUNTERS, Counter};
pub use memory::{Memory, MemoryError, SharedRegion};
pub use pci::{BarChange, PciFunction};
pub use window::Window;

pub use hypertrace_abi::config::RingMode;
pub use hypertrace_abi::layout::{Geometry, Region};
