//! A VMM forks, and the child process jails the device. Only the child's own events are recorded.
#![allow(unsafe_code)] // fork

use hypertrace_tests::child;
use hypertrace_timeline::{Session, SessionStat};
use hypertrace_trace::region;
use hypertrace_vmm::{DeviceConfig, Drain, Hypertrace, SessionConfig};

#[test]
fn declared_events_are_recorded_in_the_process_that_has_adopted_the_session_alone() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let session = SessionConfig::new(dir.path())
            .with(|config| config.events = vec!["*".parse().unwrap()]);
        let config = DeviceConfig::new(1).with(|config| config.drain = Drain::Later);
        let mut hypertrace = Hypertrace::start(session, config).unwrap();
        hypertrace.session().install();
        // SAFETY: the child calls this library, and ends without a return to the harness.
        match unsafe { libc::fork() } {
            0 => {
                drop(region!("forked_host", id = 1));
                hypertrace.start_threads(|| Ok(())).unwrap();
                hypertrace.session().install();
                drop(region!("forked_host", id = 2));
                let summary = hypertrace.finish().unwrap();
                assert_eq!((summary.host_events, summary.lost), (2, 0), "{summary:?}");
                // SAFETY: as above.
                unsafe { libc::exit(0) }
            }
            pid => {
                drop(hypertrace.leave());
                drop(region!("forked_host", id = 3));
                let mut status = -1;
                // SAFETY: the call writes the status.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                assert_eq!(status, 0);
            }
        }
        let total = SessionStat::of(&Session::open(dir.path()).unwrap()).unwrap().total;
        assert_eq!((total.events, total.lost), (2, 0));
    });
}
