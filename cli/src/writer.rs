//! Messages about a session's writer.

use hypertrace_format::origin::Origin;
use hypertrace_timeline::Session;
use jiff::Timestamp;

/// If a session is not finished, returns a line that says this and what the user can do.
pub fn unfinished(session: &Session) -> Option<String> {
    let json = session.json();
    let said = "not finished: still being written, or its writer was ended";
    let recover =
        "; if the writer was `hypertrace record --segment FILE`: hypertrace recover FILE DIR";
    (!json.finished).then(|| format!("{said}{}", if json.programs { recover } else { "" }))
}

/// Returns a line about when, where and by which command a session was recorded, in the writer's words.
pub fn origin(session: &Session) -> Option<String> {
    let json = session.json();
    let Origin { version, command, host, kernel, machine } = json.origin.as_ref()?;
    let began = Timestamp::from_nanosecond(json.started_unix_ns.into());
    let began = began.map_or(String::new(), |time| format!("{time:.0}, "));
    Some(format!(
        "recorded {began}by hypertrace {version} on {host} (Linux {kernel}, {machine}): {command}"
    ))
}
