//! Target `session`: the device with a real session, which is then read.

use crate::input::Input;
use crate::op::Op;
use crate::recorder::Ambush;
use crate::rig::{Account, EVENT, HONEST, POINT, Rig, Setup, check_exact, header, shared_memory};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::ProducerState;
use hypertrace_abi::schema::Schema;
use hypertrace_device::Chip;
use hypertrace_timeline::{ClockMaps, Event, Kind, SessionStat, Timeline, Value};
use hypertrace_trace::{Session, SessionConfig, Summary};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Panics if a guest can make a session that cannot be read, or that lacks
/// something of the honest client's.
pub fn run(bytes: &[u8]) {
    let dir = TempDir::new_in(shared_memory()).expect("a directory");
    let mut input = Input::new(bytes);
    let setup = Setup::decode(&mut input);
    let (summary, account) = record(dir.path(), &setup, |rig, host| rig.run(&mut input, host));
    check(dir.path(), &setup, &summary, &account);
}

/// Writes a session that has something of everything.
pub fn write_sample(dir: &Path) {
    let setup = Setup::decode(&mut Input::new(&[1]));
    record(dir, &setup, |mut rig, host| {
        for n in 0..4u8 {
            let schema = Op::Schema(b"s(s:str)".to_vec(), None, None);
            let text = Op::Record(1, 0, header("s(s:str)", ticks(), 1), vec![3 | 0x63_6261 << 32]);
            let wrong = Op::Record(1, 0, header("none()", ticks(), 2), vec![1, 2]);
            let future = Op::Record(1, 0, header("s(s:str)", u64::MAX, 1), vec![0]);
            let ops = [schema, text, wrong, future, Op::Publish];
            let more = [Op::Honest(40 * n), Op::Host(n.into()), Op::Point, Op::Legacy(0, 7)];
            let last = [Op::Stamp, Op::Lease, Op::Honest(3), Op::Pass(4)];
            ops.iter().chain(&more).chain(&last).for_each(|op| rig.apply(op, host));
        }
        rig.finish()
    });
}

/// A session in that directory, of what `guest` does at the device.
fn record(
    dir: &Path,
    setup: &Setup,
    guest: impl FnOnce(Rig<'_, Session>, &mut dyn FnMut(u64)) -> Account,
) -> (Summary, Account) {
    let session = Session::create(SessionConfig {
        segment_bytes: 1 << 16,
        packet_bytes: 1 << 14,
        host_rings: 1,
        host_ring_bytes: 1 << 16,
        ..SessionConfig::new(dir)
    });
    let session = session.expect("a session");
    let (memory, guest_memory) = setup.memory();
    let ambush = Ambush::default();
    let chip = Arc::new(Chip::new(memory, &setup.chip_config(), session.clone(), ()));
    let state = ProducerState::new();
    let rig = Rig::new(chip, &guest_memory, &state, &ambush);
    let account = guest(rig, &mut |value| {
        session.emit(event_type!("vmm", value = value));
    });
    (session.finish().expect("nothing keeps it from being written"), account)
}

fn check(dir: &Path, setup: &Setup, summary: &Summary, account: &Account) {
    let session = hypertrace_timeline::Session::open(dir).expect("a whole session");
    SessionStat::of(&session).expect("accounts");
    let maps = ClockMaps::of(&session).expect("clock maps");
    let sessions = [(session, maps)];
    let events: Vec<Event> =
        Timeline::new(&sessions).expect("a timeline").map(|e| e.expect("an event")).collect();
    assert_eq!(events.len() as u64, summary.records);

    let honest = |name: &str, point: bool| -> Vec<u64> {
        let ours = events.iter().filter(|e| e.client == Some(HONEST));
        let ours = ours.filter(|e| &*e.name == name && (e.kind == Kind::ReferencePoint) == point);
        ours.map(|event| number(event).unwrap_or_else(|| panic!("torn: {event:?}"))).collect()
    };
    let stream = summary.streams.iter().find(|s| s.domain == "guest" && s.client == HONEST);
    let lost = stream.map_or([0; 3], |s| [s.lost_full, s.lost_busy, s.lost_overwritten]);
    assert_eq!(lost[..2], [account.full, 0]);
    assert!(stream.is_none_or(|s| s.faults.is_empty()), "{stream:?}");
    check_exact(account, setup.ring_mode, &honest(name(EVENT), false), lost[2]);
    assert_eq!(honest(name(POINT), true), account.points);
}

fn name(text: &str) -> &str {
    Schema::parse(text).map_or("", |schema| schema.name())
}

/// The number in an event of client 1, if it is whole.
fn number(event: &Event) -> Option<u64> {
    let values: Vec<&Value> = event.fields.iter().map(|(_, value)| value).collect();
    match values[..] {
        [Value::Unsigned(n), Value::Unsigned(inverse)] if *inverse == !n => Some(*n),
        [Value::Unsigned(n), Value::Unsigned(inverse), Value::Words(rest)] => {
            let whole =
                *inverse == !n && rest.len() as u64 == n % 8 && rest.iter().all(|word| word == n);
            whole.then_some(*n)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability;
    use proptest::prelude::*;
    use std::process::Command;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn a_hostile_client_spoils_no_session(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            run(&bytes);
        }

        #[test]
        fn every_session_is_a_trace_for_other_readers(
            bytes in prop::collection::vec(any::<u8>(), 2000..6000),
        ) {
            let Some(program) = capability::program("babeltrace2") else { return Ok(()) };
            let dir = TempDir::new_in(shared_memory()).unwrap();
            let mut input = Input::new(&bytes);
            let setup = Setup::decode(&mut input);
            let (summary, _) = record(dir.path(), &setup, |rig, host| rig.run(&mut input, host));
            let out = Command::new(program).arg(dir.path().join("ctf")).output().unwrap();
            let stderr = String::from_utf8_lossy(&out.stderr);
            prop_assert!(out.status.success(), "{stderr}");
            for line in stderr.lines().filter(|line| !line.is_empty()) {
                prop_assert!(line.starts_with("WARNING: Tracer discarded"), "{line}");
            }
            let lines = out.stdout.split(|b| *b == b'\n').filter(|line| !line.is_empty());
            prop_assert_eq!(lines.count() as u64, summary.records);
            capability::used("babeltrace2");
        }
    }
}
