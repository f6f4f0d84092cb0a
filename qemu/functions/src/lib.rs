//! Function traces of a guest. A function trace has every call and every return, and is a directory that
//! uftrace can read.
//!
//! A recorder classifies each instruction once ([`decode`]). The recorder reports each executed call and
//! return to the shadow stacks of the virtual CPU ([`shadow`]). The shadow stacks return records
//! ([`record`]), and the recorder stores these records. The records go to a directory ([`write`](mod@write)).
//! A reader names functions ([`symbols`]) and adds up their times ([`read`]). The [anchor](clock::Anchor) of
//! a directory says which value of the host's counter belongs to the directory's time 0.
//!
//! ```
//! use hypertrace_functions::shadow::{Call, Return, Stacks};
//!
//! let mut stacks = Stacks::new(Default::default());
//! let mut records = Vec::new();
//! let stack = 0xffff_c900_0000_4000_u64;
//! let call = Call { at: 0x1000, slot: stack - 8, target: Some(0x2000), ..Call::default() };
//! stacks.call(&call, 10, &mut |record| records.push(record));
//! let back = Return { at: 0x2010, slot: Some(stack - 8), ..Return::default() };
//! stacks.ret(&back, 25, &mut |record| records.push(record));
//!
//! assert_eq!(records.len(), 2);
//! assert_eq!((records[0].address, records[0].time), (0x2000, 10));
//! assert_eq!((records[1].address, records[1].time), (0x2000, 25));
//! ```
//!
//! The modules [`decode`], [`shadow`] and [`record`] are for threads that run virtual CPUs: after
//! [`Stacks::new`](shadow::Stacks::new), their functions neither allocate, lock nor enter the kernel.
//!
//! The recorder, not this crate, decides which instructions are observed, and maps the memory for records.
#![forbid(unsafe_code)]

pub mod clock;
pub mod decode;
mod error;
mod file;
pub mod read;
pub mod record;
pub mod shadow;
pub mod symbols;
mod task;
pub mod write;

pub use error::{Error, Result};
pub use task::Task;

// Compiles the example of README.md as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
