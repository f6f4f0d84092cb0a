//! A guest of the 2016 interface on the PCI bus of a VM. The guest uses the config page, argument slots and
//! registers as the driver of that interface does. Every event is recorded with its client and its arguments.

use hypertrace_guest::{Args, Program, layout};
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::report::Line;
use hypertrace_tests::{babeltrace2, kvm};
use kvm_vmm::{attach_pci, record_in};
use serde_json::json;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const CLIENTS: u64 = 4;
/// Events of each client, stored alternately as one u64 and as two u32.
const EVENTS: u64 = 100;

#[test]
fn report_shows_each_event_with_its_client_and_its_arguments() {
    let Some(mut machine) = kvm::machine(2) else { return };
    let host = Host::new(geometry(CLIENTS as u32));
    let drain = host.drain();
    machine.observe(record_in(host.session.clone()));
    attach_pci(&mut machine, &host.device).unwrap();
    let legacy = Args {
        ecam: layout::ECAM,
        events: EVENTS,
        params: [CLIENTS, 0, 0, 0],
        ..Args::new(Program::Legacy)
    };

    kvm::run(machine, &legacy);
    drain.finish();
    let recorded = host.finish();

    let lines = HYPERTRACE.report(recorded.dir());
    for client in 0..CLIENTS {
        let of_client =
            |line: &&Line| line.event == "hypertrace" && line.number("client") == Some(client);
        let events: Vec<&Line> = lines.iter().filter(of_client).collect();
        assert_eq!(events.len() as u64, EVENTS);
        for (number, line) in (0..).zip(events) {
            let first = client << 32 | number;
            let args: Vec<u64> = [first].into_iter().chain((2..=8).map(|n| first + n)).collect();
            assert_eq!(line.fields["args"], json!(args), "{line:?}");
            assert!(line.source.starts_with(&format!("guest/{client}")), "{line:?}");
        }
    }
    assert_eq!(recorded.summary.reference_points, CLIENTS * EVENTS);
    assert_eq!((recorded.summary.lost, recorded.summary.faults.len()), (0, 0));
    let Some(read) = babeltrace2::read(&recorded.ctf()) else { return };
    assert_eq!(read.clean(), lines.len() as u64);
}
