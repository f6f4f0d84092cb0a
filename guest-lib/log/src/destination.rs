//! The trait of a destination: a guest's ring, or a host's backends.

use crate::message::Message;
use log::Level;
use std::fmt;

/// The ring of a guest's thread, or the backends of a host.
pub trait Destination: Copy + fmt::Debug + Send + Sync + 'static {
    /// Returns a set of bits: the backends that get a level's events now. The set is 0 if the level is off,
    /// and 1 for a ring.
    fn on(level: Level) -> u32;
    /// Records a level's event for the backends `on`.
    fn record(on: u32, level: Level, target: &str, message: &Message);
}
