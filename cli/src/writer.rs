//! What to say of a session that its writer has not ended.

use hypertrace_timeline::Session;

/// Returns a line for a session that was not ended, with what to do about it.
pub fn unfinished(session: &Session) -> Option<String> {
    let json = session.json();
    let said = "not finished: still being written, or its writer was ended";
    let recover = "; if that was `hypertrace record --segment FILE`: hypertrace recover FILE DIR";
    (!json.finished).then(|| format!("{said}{}", if json.programs { recover } else { "" }))
}
