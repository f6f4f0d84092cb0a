//! The ring of a guest's or a program's thread.

use crate::destination::Destination;
use crate::message::Message;
use hypertrace::abi::schema::mask_slot;
use hypertrace::event;
use log::Level;

/// The calling thread's ring, as `event!` uses it.
#[derive(Clone, Copy, Debug)]
pub struct Guest;

impl Destination for Guest {
    #[inline]
    fn on(level: Level) -> u32 {
        let slot = match level {
            Level::Error => const { mask_slot("log_error") },
            Level::Warn => const { mask_slot("log_warn") },
            Level::Info => const { mask_slot("log_info") },
            Level::Debug => const { mask_slot("log_debug") },
            Level::Trace => const { mask_slot("log_trace") },
        };
        hypertrace::is_on(slot).into()
    }

    fn record(_: u32, level: Level, target: &str, message: &Message) {
        let (cut, message) = (message.cut(), message.text());
        match level {
            Level::Error => event!("log_error", target, message, cut),
            Level::Warn => event!("log_warn", target, message, cut),
            Level::Info => event!("log_info", target, message, cut),
            Level::Debug => event!("log_debug", target, message, cut),
            Level::Trace => event!("log_trace", target, message, cut),
        }
    }
}
