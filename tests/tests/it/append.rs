//! Descriptions of a session at every instant at which a kill can leave them. babeltrace2 and this project's
//! reader read them.

use hypertrace_abi::event_type;
use hypertrace_test_support::steps::Steps;
use hypertrace_tests::babeltrace2;
use hypertrace_tests::host::events;
use hypertrace_trace::{Session, SessionConfig};
use std::fs;
use std::path::Path;

/// Makes functions that each record an event with a name of its own.
macro_rules! named {
    ($($name:literal)*) => {
        [$(|session: &Session| {
            session.emit(event_type!(
                $name,
                a_field_with_a_long_name_that_fills_the_page = 1u64,
                another_field_with_a_long_name_that_fills_the_page = "text",
                a_third_field_with_a_long_name_that_fills_the_page = 3u64
            ));
        }),*]
    };
}

/// Size of a page in bytes: the kernel writes either a whole page or nothing of it.
const PAGE: usize = 4096;

/// Copies the files in and below a directory.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { _ = fs::copy(from, to).unwrap() }
    }
}

#[test]
fn at_every_step_of_an_append_the_session_is_read_up_to_its_last_packet() {
    let emits = named!(
        "e00" "e01" "e02" "e03" "e04" "e05" "e06" "e07" "e08" "e09" "e10" "e11" "e12" "e13" "e14"
        "e15" "e16" "e17" "e18" "e19" "e20" "e21" "e22" "e23" "e24" "e25" "e26" "e27" "e28" "e29"
        "e30" "e31" "e32" "e33" "e34" "e35" "e36" "e37" "e38" "e39" "e40" "e41" "e42" "e43" "e44"
        "e45" "e46" "e47" "e48" "e49" "e50" "e51" "e52" "e53" "e54" "e55" "e56" "e57" "e58" "e59"
    );
    let made = tempfile::tempdir().unwrap();
    let (dir, killed) = (made.path().join("s"), made.path().join("killed"));
    let config = SessionConfig::new(&dir).with(|config| config.file_bytes = 1 << 17);
    let session = Session::create(config).unwrap();
    session.attach("vmm");
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    let mut crossed = 0;
    let mut packets = 0;
    for emit in emits {
        if crossed > 2 {
            break;
        }
        let _ = fs::remove_dir_all(&killed);
        copy(&dir, &killed);
        let before = (read("classes.jsonl"), read("ctf/metadata"));
        emit(&session);
        session.begin_pass();
        session.end_pass();
        let after = (read("classes.jsonl"), read("ctf/metadata"));

        assert!(after.0.starts_with(&before.0));
        for cut in before.0.len()..=after.0.len() {
            fs::write(killed.join("classes.jsonl"), &after.0[..cut]).unwrap();
            assert_eq!(events(&killed).len(), packets);
        }
        let pages = (before.1.len()..after.1.len()).filter(|cut| cut % PAGE == 0);
        // The writer may have replaced the metadata during this pass, because it replaces the metadata at
        // certain times: after 1 second, then 2, then 4.
        let pages = pages.filter(|_| after.1.starts_with(&before.1));
        let cuts: Vec<usize> = pages.chain([after.1.len()]).collect();
        crossed += cuts.len() - 1;
        for cut in cuts {
            fs::write(killed.join("ctf/metadata"), &after.1[..cut]).unwrap();
            let Some(lines) = babeltrace2::read_clean(&killed.join("ctf")) else { break };
            assert_eq!(lines.len(), packets, "cut at {cut} of {}", after.1.len());
        }
        // The first event makes two packets, because the lease has its own packet.
        packets += if packets == 0 { 2 } else { 1 };
        assert_eq!(events(&dir).len(), packets);
        if let Some(lines) = babeltrace2::read_clean(&dir.join("ctf")) {
            assert_eq!(lines.len(), packets);
        }
    }
    assert!(crossed > 2, "{crossed}");
    session.finish().unwrap();
}
