// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Finds the sessions whose hosts a kernel's trace shows.

use super::KernelTrace;
use crate::inputs::ctf::Session;

/// Returns the sessions whose threads a trace may show. The first session is the trace's own session: the
/// session of the trace's directory, or the only session. Sessions of the same boot that have no trace of
/// their own follow. Returns `None` if the trace's own session is not known.
pub(crate) fn shown_by<'a>(
    trace: &KernelTrace,
    sessions: &'a [&'a Session],
    traces: &'a [KernelTrace],
) -> Option<impl Iterator<Item = usize> + 'a> {
    let own = session_of(trace, sessions.len())?;
    let has_own = |number: &usize| {
        let mut of_hosts = traces.iter().filter(|trace| !trace.is_of_guest());
        of_hosts.any(|trace| session_of(trace, sessions.len()) == Some(*number))
    };
    let is_placed = move |other: &usize| sessions[*other].is_placed_with(sessions[own]);
    let others = (0..sessions.len()).filter(move |other| *other != own && !has_own(other));
    Some([own].into_iter().chain(others.filter(is_placed)))
}

/// Returns the sessions on the machine of a host's trace: all sessions of the same boot, even if they have
/// traces of their own.
pub(crate) fn machine_of(trace: &KernelTrace, sessions: &[&Session]) -> Vec<usize> {
    let Some(own) = session_of(trace, sessions.len()) else { return Vec::new() };
    let is_there = |other: &usize| *other == own || sessions[*other].is_placed_with(sessions[own]);
    (0..sessions.len()).filter(is_there).collect()
}

/// Returns the session of a trace: the session of its directory, or the only session.
fn session_of(trace: &KernelTrace, sessions: usize) -> Option<usize> {
    trace.session().or((sessions == 1).then_some(0))
}
