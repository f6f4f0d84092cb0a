//! Backends that commands switch.

use crate::events::registry::Backends;
#[cfg(feature = "events")]
use hypertrace_format::error::error_chain;

/// Backends that commands switch, by name.
const SWITCHED: [(&str, Backends); 5] = [
    ("log", Backends::LOG),
    ("syslog", Backends::SYSLOG),
    ("ftrace", Backends::FTRACE),
    ("ftrace-raw", Backends::FTRACE_RAW),
    ("sdt", Backends::SDT),
];

/// Returns the names of backends, in the commands' spelling.
pub(super) fn names(backends: Backends) -> String {
    let all = [("rings", Backends::RING)].into_iter().chain(SWITCHED);
    let on = all.filter(|(_, backend)| backends.contains(*backend));
    let on: Vec<&str> = on.map(|(name, _)| name).collect();
    if on.is_empty() { "nop".into() } else { on.join(" ") }
}

/// Switches the backend with this name. In `ftrace:DIR` and `ftrace-raw:DIR`, `DIR` is the folder of a
/// tracefs instance.
#[cfg(feature = "events")]
pub(super) fn switch(name: &str, on: bool) -> Result<String, String> {
    use crate::events::backend::{self, ftrace};
    use std::path::Path;

    let (name, instance) = match name.split_once(':') {
        Some((name, instance)) => (name, Some(Path::new(instance))),
        None => (name, None),
    };
    let Some(&(_, which)) = SWITCHED.iter().find(|(known, _)| *known == name) else {
        return Err(format!(
            "no backend {name:?} that can be switched; there are log, syslog, \
             ftrace[:DIR], ftrace-raw[:DIR], sdt"
        ));
    };
    if !on {
        backend::remove(which);
        return Ok(String::new());
    }
    if which.intersects(Backends::FTRACE | Backends::FTRACE_RAW) {
        let instance = instance.unwrap_or(Path::new("/sys/kernel/tracing"));
        ftrace::open(instance).map_err(|e| error_chain(&e))?;
    }
    backend::add(which);
    Ok(String::new())
}

/// Refuses to switch a backend, because a build without declared events has only the backend `session`.
#[cfg(not(feature = "events"))]
pub(super) fn switch(_name: &str, _on: bool) -> Result<String, String> {
    Err("there is no backend but the session: this VMM is built without declared events (the \
         feature events of hypertrace-trace)"
        .into())
}
