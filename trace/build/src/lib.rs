//! Turns `trace-events` files, in QEMU's syntax, into typed Rust functions at build time. A crate of a VMM
//! declares its events in such a file. The crate calls `trace::virtio_irq(vq, isr)` where the event
//! `virtio_irq` happens. An event that is off costs one load and a branch. `hypertrace-trace` switches events
//! and selects their backends while the program runs.
//!
//! `build.rs`, with this crate as a build-dependency:
//!
//! ```no_run
//! hypertrace_trace_build::Builder::new().file("trace-events").generate_or_exit();
//! ```
//!
//! In the crate, with `hypertrace-trace` as a dependency:
//!
//! ```text
//! pub mod trace {
//!     include!(concat!(env!("OUT_DIR"), "/trace-events.rs"));
//! }
//! ```
//!
//! [`Builder`] is all that a build script needs. For other programs, [`parse`]
//! returns the declarations ([`EventDecl`]), or all [`Errors`] with their
//! positions, and [`generate`] turns declarations into Rust.
//!
//! # Syntax
//!
//! Each line declares one event. Empty lines and lines that begin with `#` are ignored.
//!
//! ```
//! # let events = hypertrace_trace_build::parse("trace-events", r#"
//! virtio_irq(int vq, uint8_t isr, const char *name, void *p) "vq %d isr 0x%02x name %s p %p"
//! disable dma_map(uint64_t addr, size_t len) "addr 0x%" PRIx64 " len %zu"
//! vm_started(void) "started"
//! # "#).unwrap();
//! # assert_eq!(events.len(), 3);
//! ```
//!
//! | part | what it can be |
//! |---|---|
//! | before the name | `disable`: calls are compiled to nothing; `vcpu`: as QEMU's reader, puts an argument `void *__cpu` first, and `cpu=%p ` before the format |
//! | name | `[A-Za-z_][A-Za-z0-9_]*`, at most 64 bytes, unique; a Rust keyword becomes a raw identifier |
//! | arguments | `(void)`, or 1 to 10 of type and name; in Rust, a `self` is `self_` |
//! | format | strings with C's escapes and the macros below, next to each other; line breaks are allowed, except at the end |
//!
//! | C type | Rust |
//! |---|---|
//! | `bool` | `bool` |
//! | `char`, `short`, `int`, `long`, `long long`, `signed`, `unsigned`, in C's combinations | `i8` to `i64`, `u8` to `u64` |
//! | `int8_t` to `int64_t`, `uint8_t` to `uint64_t` | `i8` to `i64`, `u8` to `u64` |
//! | `ssize_t`, `off_t`, `ptrdiff_t`, `intptr_t`, `intmax_t` | `i64` |
//! | `size_t`, `uintptr_t`, `uintmax_t`; QEMU's `hwaddr`, `ram_addr_t`, `vaddr`, `target_ulong`, `dma_addr_t` | `u64` |
//! | `const char *`, `char *` | `impl AsRef<[u8]>`: a string |
//! | every other pointer | `u64`: an address |
//!
//! | in a format | |
//! |---|---|
//! | integers | `%d %i %u %o %x %X`; lengths `l ll z`; a width, with or without `0`: `%04x`, also as `%.4x`; a `*` as the width takes the argument before |
//! | characters, pointers | `%c`, `%p` |
//! | strings | `%s`, with or without a width or `*` |
//! | macros | `PRI[diouxX](8\|16\|32\|64\|PTR)` |
//!
//! The files of QEMU 7.2 to 11.1 use only these forms.
//!
//! An unsigned integer that the format shows by `%x` is recorded as a
//! hexadecimal number, like an address.
//!
//! A format must have one conversion for each argument. A conversion must have the kind of its argument, and
//! the size of its argument: either 64 bits, or at most 32 bits. The sign may differ. Types have the sizes of
//! 64-bit Linux, and plain `char` has a sign.
//!
//! The text of an event is the text that C's printf writes, with these exceptions: a null pointer is `0x0`; a
//! value of `%s` or `%c` that is no plain text is escaped, and the width counts the escaped characters; a
//! line break of the format is written as `\n`; a width that is an argument counts as at most 999.
//!
//! # What it does not do
//!
//! This crate does not know the property `tcg` of old releases of QEMU, doubles, or any form of C's printf
//! that is not in the table: for each of these, the crate reports an error whose message says what to write.
//! This crate does not look for events in C or Rust code, and reads no C headers: a type or macro that is not
//! in the tables is an error. The crate that includes the generated code may deny `unsafe_code`, but not
//! forbid it.

mod builder;
mod declaration;
mod error;
mod format;
mod generate;
mod lexer;
mod names;
mod parser;
mod printf;
mod rust_format;
mod types;

pub use builder::{Builder, Error, OUTPUT};
pub use declaration::{Argument, EventDecl};
pub use error::{Errors, MAX_ERRORS, SyntaxError};
pub use format::{Format, Piece};
pub use generate::generate;
pub use names::{MAX_ARGUMENTS, MAX_NAME};
pub use parser::parse;
pub use types::{CType, Kind};

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
