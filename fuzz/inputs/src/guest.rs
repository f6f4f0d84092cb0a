//! The memory that guest and device share, as both see it.

use hypertrace_device::{Geometry, Memory, Region};
use std::sync::Arc;

/// The smallest there are: every edge is near.
pub fn geometry() -> Geometry {
    Geometry { clients: 3, legacy_args: 4, ring_bytes: 4096, block_bytes: 256, schema_bytes: 4096 }
}

/// The device's mapping, and the guest's of the same memory.
pub fn memory() -> (Memory, Arc<Memory>) {
    let device = Memory::anonymous(geometry()).expect("a host with memory");
    let region = device.region(Region::Rings).expect("rings are memory");
    let file = region.file().file().try_clone().expect("a free descriptor");
    let guest = Memory::from_file(geometry(), file).expect("the same memory once more");
    (device, Arc::new(guest))
}
