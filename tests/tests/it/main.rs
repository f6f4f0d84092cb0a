// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate. Each module has a subject.

mod append;
mod book;
mod c_headers;
mod capability;
mod disk_faults;
mod exactness;
mod faults;
mod forked_host;
mod ftrace;
mod guest_seccomp;
mod hostile;
mod imports;
mod journal;
mod machine;
mod pci;
mod reset;
mod restore;
mod riscv64;
mod sdt;
mod snapshots;
mod soak;
mod storm;
mod text;
mod threat_model;
mod unattached;
mod user;
mod vm_memory;
mod workers;
