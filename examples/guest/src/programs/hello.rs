//! The smallest program: prints a line on the console.
#![allow(unsafe_code)]

use core::fmt::Write;

use crate::{Args, Console};

pub fn run(cpu: u32, args: &Args) -> u32 {
    // SAFETY: `Args` says that this is the control page.
    let mut console = unsafe { Console::new(args.control) };
    // A console cannot fail.
    let _ = writeln!(console, "hello from vCPU {cpu}");
    0
}
