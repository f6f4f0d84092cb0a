//! A hostile guest out of any bytes.
//!
//! [`chip`] and [`session`] take bytes for what a guest does: operations
//! on the device, on its shared memory and on its config space. Beside them a
//! client that keeps the rules emits. Each function checks what must hold
//! whatever the bytes are, and panics if it does not:
//!
//! - nothing panics, and every pass of the drain loop ends, within a bound;
//! - the other client's events arrive, each one, as they were emitted, or are
//!   counted as lost;
//! - a session that was written meanwhile is read to its end without an error.
//!
//! Fuzz targets and tests are users of these two.

mod bytes;
mod guest;
mod honest;
mod keeper;
mod operation;
mod session;
mod world;

pub use session::{Written, session, session_in};

use bytes::Bytes;
use hypertrace_device::RingMode;
use keeper::Keeper;
use world::World;

/// The client that the operations are of.
pub const HOSTILE: u32 = 0;
/// The client that keeps the rules.
pub const HONEST: u32 = 1;

/// How a run is set up: the first byte says.
#[derive(Clone, Copy, Debug)]
struct Setup {
    mode: RingMode,
    /// The hostile client leaves the other one's memory and registers alone.
    /// Else nothing can be said of what arrives.
    contained: bool,
}

impl Setup {
    fn decode(bytes: &mut Bytes<'_>) -> Setup {
        let byte = bytes.byte();
        Setup {
            mode: if byte & 1 == 0 { RingMode::Discard } else { RingMode::Overwrite },
            contained: byte & 6 != 6,
        }
    }
}

/// Runs a guest made of these bytes against the device. The sink keeps what it
/// gets, and changes the guest's memory in the middle of every drain.
///
/// # Panics
/// If the device or the ring broke a rule.
pub fn chip(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let setup = Setup::decode(&mut bytes);
    let (device, guest) = guest::memory();
    let keeper = Keeper::new(guest.clone(), setup, &mut bytes);
    let state = Default::default();
    let mut world = World::new(device, &guest, &state, setup, [0; 16], 1 << 30, keeper);
    world.run(bytes);
    if setup.contained {
        let kept = world.chip().sink().kept();
        world.honest().check(&kept);
    }
}
