//! An event as one text, for text backends and for events without a schema of their own.

use std::fmt::{self, Formatter};
use tracing_core::Event;
use tracing_core::field::{Field, Visit};

/// Displays the message of an event, then its other fields.
pub struct EventText<'a>(pub &'a Event<'a>);

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut writer = Writer { f, separator: "", result: Ok(()) };
        self.0.record(&mut writer);
        writer.result
    }
}

struct Writer<'a, 'f> {
    f: &'a mut Formatter<'f>,
    separator: &'static str,
    result: fmt::Result,
}

impl Visit for Writer<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let separator = std::mem::replace(&mut self.separator, " ");
        self.result = self.result.and_then(|()| match field.name() {
            "message" => write!(self.f, "{separator}{value:?}"),
            name => write!(self.f, "{separator}{name}={value:?}"),
        });
    }
}
