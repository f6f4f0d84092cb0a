//! The backends of a VMM, or of another host.

use crate::destination::Destination;
use crate::message::Message;
use log::Level;

hypertrace_trace::include_events!();

/// The backends that are active. Declared events use the same backends.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl Destination for Host {
    #[inline]
    fn on(level: Level) -> u32 {
        match level {
            Level::Error => log_error::EVENT.on(),
            Level::Warn => log_warn::EVENT.on(),
            Level::Info => log_info::EVENT.on(),
            Level::Debug => log_debug::EVENT.on(),
            Level::Trace => log_trace::EVENT.on(),
        }
    }

    fn record(on: u32, level: Level, target: &str, message: &Message) {
        let (target, text, cut) = (target.as_bytes(), message.text().as_bytes(), message.cut());
        match level {
            Level::Error => log_error::fire(on, target, text, cut),
            Level::Warn => log_warn::fire(on, target, text, cut),
            Level::Info => log_info::fire(on, target, text, cut),
            Level::Debug => log_debug::fire(on, target, text, cut),
            Level::Trace => log_trace::fire(on, target, text, cut),
        }
    }
}
