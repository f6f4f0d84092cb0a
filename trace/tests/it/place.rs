//! Tests of the place and the users of a session. A session writes only in its own directory, even if other
//! files replace files of the directory during the session. Only the session's user may read the session,
//! unless the configuration shares the session. Other tests here count the file descriptors that a session
//! keeps open.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::Emit;
use hypertrace_format::error::BadInput;
use hypertrace_test_support::{babeltrace2, capability, this_test, wait_until};
use hypertrace_trace::{DirectoryError, Output, Session, SessionConfig, SessionError, Share};
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit, umask};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs this test again in a child process. In the child, returns the child's directory.
fn as_child(test: &str) -> Option<std::path::PathBuf> {
    if let Some(dir) = std::env::var_os(common::CHILD) {
        return Some(dir.into());
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(common::child(test, dir.path()).status().unwrap().success());
    None
}

/// Records a session with all kinds of files.
fn record(dir: &Path, share: Share) {
    let config = SessionConfig::new(dir).with(|config| {
        config.share = share;
        config.file_bytes = 1 << 20;
    });
    let session = Session::create(config).unwrap();
    let _monitor = session.serve().unwrap();
    session.set_simple_file(&dir.join("simple")).unwrap();
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", n = 1u64));
    session.emit(event_type!("host"));
    guest.pass(&session);
    let found = check_modes(dir, share);
    let names = ["control.sock", "ctf", "ctf/metadata", "ctf/guest-000-0000", "session.json"];
    for name in names.into_iter().chain(["simple"]) {
        assert!(found.contains(&dir.join(name)), "{name}: {found:?}");
    }
    session.finish().unwrap();
}

/// Asserts that all files and folders of a session have the modes of this share. Returns all paths in the
/// session's directory.
fn check_modes(dir: &Path, share: Share) -> BTreeSet<PathBuf> {
    let (folders, files) = match share {
        Share::Owner => (0o700, 0o600),
        Share::Group => (0o750, 0o640),
        Share::All => (0o755, 0o644),
    };
    let mut found = BTreeSet::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let expected = match path.ends_with("control.sock") {
            true => 0o600,
            false if meta.is_dir() => folders,
            false => files,
        };
        assert_eq!(meta.mode() & 0o7777, expected, "{}", path.display());
        found.insert(path);
    }
    found
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    let Some(dir) = as_child(this_test!()) else { return };
    for (mask, name) in [(0o000, "0"), (0o022, "22"), (0o077, "77")] {
        umask(Mode::from_raw_mode(mask));
        fs::create_dir(dir.join(name)).unwrap();
        for share in [Share::Owner, Share::Group, Share::All] {
            record(&dir.join(name).join(format!("{share:?}")), share);
        }
        // The folder exists already, and its mode gives more rights than the session's folder may give.
        let there = dir.join(name).join("there");
        fs::create_dir(&there).unwrap();
        fs::set_permissions(&there, Permissions::from_mode(0o777)).unwrap();
        record(&there, Share::Owner);
    }
}

#[test]
fn snapshots_have_the_modes_of_their_session() {
    let dir = tempfile::tempdir().unwrap();
    let config = SessionConfig::new(dir.path()).with(|config| config.output = Output::Snapshots);
    let session = Session::create(config).unwrap();
    let writer = session.start_writer(Duration::from_millis(1)).unwrap();
    session.attach("thread");
    session.emit(event_type!("e", n = 1u64));

    let snapshot = session.snapshot().unwrap();

    drop(writer);
    for (name, mode) in
        [("", 0o700), ("ctf", 0o700), ("session.json", 0o600), ("ctf/metadata", 0o600)]
    {
        let found = fs::metadata(snapshot.join(name)).unwrap().mode() & 0o7777;
        assert_eq!(found, mode, "{name}");
    }
}

#[test]
fn a_directory_has_one_session_also_if_that_writes_no_trace() {
    for output in [Output::Trace, Output::Snapshots, Output::Nothing] {
        let dir = tempfile::tempdir().unwrap();
        let create = || {
            Session::create(SessionConfig::new(dir.path()).with(|config| config.output = output))
        };
        let first = create().unwrap();

        let second = create().err().map(|why| why.to_string());

        assert!(second.unwrap().contains("not empty"), "{output:?}");
        first.abandon();
        create().unwrap().finish().unwrap();
        // A session without a trace leaves no files.
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left == 0, output != Output::Trace, "{output:?}");
    }
}

#[test]
fn a_session_whose_directory_is_replaced_continues_in_the_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let [there, moved, victim] = ["s", "moved", "victim"].map(|name| dir.path().join(name));
    fs::create_dir(&victim).unwrap();
    fs::create_dir(victim.join("ctf")).unwrap();
    let config = SessionConfig::new(&there).with(|config| config.open_files = 1);
    let session = Session::create(config).unwrap();
    let mut guests = [Guest::new(0), Guest::new(1)];

    fs::rename(&there, &moved).unwrap();
    symlink(&victim, &there).unwrap();
    for guest in &mut guests {
        guest.emit(event_type!("e", n = 1u64));
        guest.pass(&session);
    }
    let monitor = session.serve().unwrap();
    assert!(moved.join("control.sock").exists());
    drop(monitor);
    let summary = session.finish().unwrap();

    assert_eq!((summary.ring_events, summary.write_failures), (2, 0));
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    assert_eq!(fs::read_dir(victim.join("ctf")).unwrap().count(), 0);
    if let Some(lines) = babeltrace2::read_clean(&moved.join("ctf")) {
        assert_eq!(lines.len() as u64, summary.records);
    }
}

#[test]
fn links_that_are_planted_in_a_session_lead_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    let there = dir.path().join("s");
    let session = Session::create(SessionConfig::new(&there)).unwrap();
    for name in
        [".session.json.new", "ctf/.metadata.new", "ctf/.guest-000-0000", "ctf/guest-000-0000"]
    {
        symlink(&victim, there.join(name)).unwrap();
    }
    fs::remove_file(there.join("session.json")).unwrap();
    symlink(&victim, there.join("session.json")).unwrap();
    symlink(&victim, there.join("simple")).unwrap();
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", n = 1u64));
    guest.pass(&session);

    let failed = session.set_simple_file(&there.join("simple")).unwrap_err();
    let summary = session.finish().unwrap();

    assert!(failed.to_string().contains("simple"), "{failed}");
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    assert_eq!((summary.ring_events, summary.write_failures), (1, 0));
    fs::remove_file(there.join("simple")).unwrap();
    for entry in fs::read_dir(there.join("ctf")).unwrap().chain(fs::read_dir(&there).unwrap()) {
        let entry = entry.unwrap();
        assert!(!entry.file_type().unwrap().is_symlink(), "{:?}", entry.file_name());
    }
}

#[test]
fn a_directory_of_another_user_is_refused() {
    const NOBODY: u32 = 65534;
    let test = "a_directory_of_another_user_is_refused";
    let refused = |dir: &Path, owner: u32, user: u32| {
        let error = Session::create(SessionConfig::new(dir)).unwrap_err();
        let owned = matches!(error, SessionError::Directory(DirectoryError::NotOwned { owner: o, user: u, .. })
            if (o, u) == (owner, user));
        assert!(owned && error.is_bad_input(), "{error}");
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    };
    if let Some(dir) = std::env::var_os(common::CHILD) {
        // The child runs as the user nobody, in a directory to which all users may write.
        let dir = Path::new(&dir);
        refused(&dir.join("root"), 0, NOBODY);
        refused(&dir.join("link"), 0, NOBODY);
        Session::create(SessionConfig::new(dir.join("nobody"))).unwrap();
        // The umask takes all rights from new directories. The child is not root, so it could not use such a
        // directory. The session must therefore set the rights itself.
        umask(Mode::from_raw_mode(0o777));
        let path = dir.join("masked");
        Session::create(SessionConfig::new(&path)).unwrap().finish().unwrap();
        assert!(!check_modes(&path, Share::Owner).is_empty());
        return;
    }
    if !geteuid().is_root() {
        // The tests' own user must not use the directory of process 1, /proc/1. But in a user namespace,
        // /proc/1 may belong to this user.
        if fs::metadata("/proc/1").unwrap().uid() != geteuid().as_raw() {
            let error = Session::create(SessionConfig::new("/proc/1")).unwrap_err();
            assert!(
                matches!(error, SessionError::Directory(DirectoryError::NotOwned { .. })),
                "{error}"
            );
        }
        capability::missing("second-user", format!("needs root; a part not run: {test}"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    open(dir.path());
    for name in ["root", "nobody", "theirs"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        open(&dir.path().join(name));
    }
    let theirs = dir.path().join("theirs");
    for name in ["nobody", "theirs"] {
        std::os::unix::fs::chown(dir.path().join(name), Some(NOBODY), None).unwrap();
    }
    symlink(dir.path().join("nobody"), dir.path().join("link")).unwrap();
    // The directory belongs to root, but the link to the directory belongs to another user.
    let planted = dir.path().join("planted");
    symlink(dir.path().join("root"), &planted).unwrap();
    std::os::unix::fs::lchown(&planted, Some(NOBODY), None).unwrap();

    refused(&theirs, NOBODY, 0);
    refused(&planted, NOBODY, 0);
    let mut child = common::child(test, dir.path());
    match child.uid(NOBODY).status() {
        Ok(status) => assert!(status.success()),
        Err(why) => {
            return capability::missing("second-user", format!("{why}; a part not run: {test}"));
        }
    }
    capability::used("second-user");
}

#[test]
fn more_streams_than_descriptors_lose_nothing() {
    const CLIENTS: u32 = 100;
    const ROUNDS: u64 = 20;
    let Some(dir) = as_child(this_test!()) else { return };
    let most = getrlimit(Resource::Nofile).maximum;
    let many = Some(most.map_or(1_024, |most| most.min(1_024)));
    setrlimit(Resource::Nofile, Rlimit { current: many, maximum: most }).unwrap();
    assert_eq!(SessionConfig::new("s").open_files, 64);
    setrlimit(Resource::Nofile, Rlimit { current: Some(48), maximum: most }).unwrap();
    let config = SessionConfig::new(dir.join("s")).with(|config| config.file_bytes = 1 << 17);
    assert_eq!(config.open_files, 12);
    let session = Session::create(config).unwrap();
    let mut guests: Vec<Guest> = (0..CLIENTS).map(Guest::new).collect();
    for round in 0..ROUNDS {
        for guest in &mut guests {
            for n in 0..100u64 {
                assert_eq!(guest.emit(event_type!("e", round, n)), Emit::Recorded);
            }
            guest.pass(&session);
        }
        // The VMM must still be able to open other files.
        let others: Vec<_> = (0..20).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        drop(others);
    }
    let summary = session.finish().unwrap();
    assert_eq!((summary.lost, summary.write_failures), (0, 0));
    assert_eq!(summary.ring_events, u64::from(CLIENTS) * ROUNDS * 100);
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    if let Some(lines) = babeltrace2::read_clean(&dir.join("s/ctf")) {
        assert_eq!(lines.len() as u64, summary.records);
    }
}

#[test]
fn a_writer_locks_the_trace_and_leaves_the_lock_of_the_directory_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let lock = |path: &Path| {
        flock(fs::File::open(path).unwrap(), FlockOperation::NonBlockingLockExclusive)
    };
    let session = Session::create(SessionConfig::new(dir.path())).unwrap();

    let (of_dir, of_trace) = (lock(dir.path()), lock(&dir.path().join("ctf")));
    session.finish().unwrap();

    assert_eq!((of_dir, of_trace), (Ok(()), Err(Errno::WOULDBLOCK)));
    // The lock may last a moment longer, because another test may start a process. The new process has copies
    // of all descriptors until it executes its program.
    wait_until("the end of the lock", || lock(&dir.path().join("ctf")).is_ok());
}
