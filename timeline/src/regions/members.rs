// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! JSON members of causes, and of waits and steps that have causes. The members of a cause stand beside the
//! other members of the wait or the step.

use super::breakdown;
use super::causes;
use super::parts::Part;
use serde::Serialize;

/// What a thread waited for.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct Cause {
    cause: String,
    name: Option<String>,
    names: Option<u32>,
    tid: Option<u32>,
    session: Option<usize>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct Wait {
    part: Part,
    cause: String,
    name: Option<String>,
    names: Option<u32>,
    tid: Option<u32>,
    session: Option<usize>,
    ns: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct PathStep {
    name: Option<String>,
    names: Option<u32>,
    tid: Option<u32>,
    session: Option<usize>,
    doing: Part,
    cause: Option<String>,
    ns: u64,
}

impl From<causes::Cause> for Cause {
    fn from(cause: causes::Cause) -> Cause {
        use causes::Cause::{Idle, Interrupt, Others, Softirq, Thread, Timer, Unknown};
        let (tid, names, session) = match &cause {
            Thread { tid, names, session, .. } => (Some(*tid), Some(*names), *session),
            _ => (None, None, None),
        };
        let (kind, name) = match cause {
            Unknown(why) => ("unknown", Some(why.key().to_owned())),
            Thread { name, .. } => ("thread", name),
            Idle => ("idle", None),
            Timer => ("timer", None),
            Interrupt(name) => ("interrupt", name),
            Softirq(name) => ("softirq", name.map(str::to_owned)),
            Others => ("others", None),
        };
        Cause { cause: kind.to_owned(), name, names, tid, session }
    }
}

impl From<breakdown::Wait> for Wait {
    fn from(of: breakdown::Wait) -> Wait {
        let breakdown::Wait { part, cause, ns } = of;
        let Cause { cause, name, names, tid, session } = causes::Cause::clone(&cause).into();
        Wait { part, cause, name, names, tid, session, ns }
    }
}

impl From<breakdown::PathStep> for PathStep {
    fn from(of: breakdown::PathStep) -> PathStep {
        let breakdown::PathStep { thread, part: doing, cause, ns } = of;
        let Cause { name, names, tid, session, .. } = causes::Cause::clone(&thread).into();
        let cause = cause.map(|cause| match &*cause {
            causes::Cause::Unknown(why) => why.key().to_owned(),
            known => known.to_string(),
        });
        // Only a thread's name is shown, and only a thread has a `tid`.
        PathStep { name: name.filter(|_| tid.is_some()), names, tid, session, doing, cause, ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::{Deserialize, Deserializer};

    fn entry() -> breakdown::CauseEntry {
        breakdown::CauseEntry::number_all(vec![causes::Cause::Others]).remove(0)
    }

    impl<'de> Deserialize<'de> for causes::Cause {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<causes::Cause, D::Error> {
            Cause::deserialize(from).map(|_| causes::Cause::Others)
        }
    }

    impl<'de> Deserialize<'de> for breakdown::Wait {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<breakdown::Wait, D::Error> {
            let Wait { part, ns, .. } = Wait::deserialize(from)?;
            Ok(breakdown::Wait { part, cause: entry(), ns })
        }
    }

    impl<'de> Deserialize<'de> for breakdown::PathStep {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<breakdown::PathStep, D::Error> {
            let PathStep { doing, ns, .. } = PathStep::deserialize(from)?;
            Ok(breakdown::PathStep { thread: entry(), part: doing, cause: None, ns })
        }
    }
}
