// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tracks of records, which uftrace calls tasks.

/// Track of records: a virtual CPU at a privilege level, or a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Kernel's thread id of the task. The thread id of a written task is not 0.
    pub tid: u32,
    /// Name of the task, such as `cpu0 Ring3`. The name of a task from a trace is empty if the trace does not
    /// name the task. uftrace shows 15 bytes of a name.
    pub name: String,
}

impl Task {
    /// Returns the task of a virtual CPU at a privilege level, numbered and named as QEMU's own plugin does:
    /// `cpu0 Ring3` is 103.
    #[must_use]
    pub fn of_vcpu(vcpu: u32, level: u32, name: &str) -> Self {
        let tid = vcpu.saturating_add(1).saturating_mul(100).saturating_add(level);
        Task { tid, name: format!("cpu{vcpu} {name}") }
    }
}
