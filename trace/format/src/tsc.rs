//! The TSCs of guests. The VMM describes how the hypervisor computes a guest's TSC from the host's TSC.

use serde::{Deserialize, Serialize};

/// Maximum number of fraction bits of a ratio between two TSCs: VMX has 48, SVM 32.
pub const MAX_TSC_SHIFT: u32 = 48;

/// The TSC of a vCPU, or of all vCPUs of a VM: `(host * multiplier >> shift) + offset`, modulo 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GuestTsc {
    /// Offset in ticks. With KVM, the offset is the attribute KVM_VCPU_TSC_OFFSET as a signed number.
    pub offset: i64,
    /// Guest ticks for each host tick, with `shift` fraction bits; never 0.
    pub multiplier: u64,
    /// Number of fraction bits of `multiplier`, at most [`MAX_TSC_SHIFT`].
    pub shift: u32,
}

impl GuestTsc {
    /// Returns a TSC that runs at the rate of the host's TSC.
    pub const fn unscaled(offset: i64) -> GuestTsc {
        GuestTsc { offset, multiplier: 1, shift: 0 }
    }

    /// Returns true if the multiplier and the shift are possible values.
    pub const fn is_possible(&self) -> bool {
        self.multiplier > 0 && self.shift <= MAX_TSC_SHIFT
    }
}

/// A TSC in one epoch. `session.json` holds the VMM's description of a TSC in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTscJson {
    /// Clock epoch.
    pub epoch: u32,
    /// The client that reads this TSC. `None` stands for all clients that have no entry of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<u32>,
    /// The TSC.
    #[serde(flatten)]
    pub tsc: GuestTsc,
}
