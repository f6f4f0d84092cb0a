//! `hypertrace serve --socket` with VMMs that come, go or are silent, and with peers that are no VMM.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hypertrace_abi::layout::{PAGE, register};
use hypertrace_test_support::child;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::serve::Server;
use hypertrace_tests::wait_until;
use hypertrace_trace::{Session, SessionConfig};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, listen, sendmsg, socket_with, sockopt,
};
use tempfile::TempDir;
use vfio_user::Client;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const CONFIG: u32 = 0;
const CONTROL: u32 = 2;
/// Offset of the epoch in the config page.
const EPOCH: u64 = std::mem::offset_of!(hypertrace_abi::config::ConfigPage, epoch) as u64;
/// Messages of vfio-user: VERSION, a commit of the interface of 2016, and a reset that wants no reply.
const VERSION: &[u8] = &[1, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const COMMIT: &[u8] = &[
    2, 0, 10, 0, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // header
    8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, // access
    7, 0, 0, 0, 0, 0, 0, 0,
];
/// Offset of the first client's register LEASE.
const LEASE: u64 = 2 * PAGE + register::LEASE;
const RESET: &[u8] = &[3, 0, 13, 0, 16, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0];

fn served(options: &[&str]) -> (TempDir, PathBuf, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), options);
    let socket = folder.path().join("socket");
    (folder, socket, server)
}

#[test]
fn a_session_says_that_another_process_than_the_vmm_recorded_it() {
    let folder = tempfile::tempdir().unwrap();
    for start in [
        |dir: &Path| Server::of_file(HYPERTRACE, dir),
        |dir: &Path| Server::of_socket(HYPERTRACE, dir, &[]),
    ] {
        let dir = tempfile::tempdir_in(folder.path()).unwrap();
        let mut server = start(dir.path());
        let json = server.session.join("session.json");
        server.stop();

        let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();

        assert_eq!(json["served"], true);
    }
}

#[test]
fn the_callers_span_is_in_the_session_and_in_the_guests_config_page() {
    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const AT: u64 = std::mem::offset_of!(hypertrace_abi::config::ConfigPage, trace_parent) as u64;
    let (_folder, socket, server) = served(&["--traceparent", TEXT]);
    let mut vmm = Client::new(&socket).unwrap();

    let mut bytes = [0; 32];
    vmm.region_read(CONFIG, AT, &mut bytes).unwrap();

    let words =
        std::array::from_fn(|i| u64::from_le_bytes(bytes[8 * i..][..8].try_into().unwrap()));
    let parent = hypertrace_abi::trace_parent::TraceParent::from_words(words).unwrap();
    assert_eq!(parent.to_string(), TEXT);
    let json = fs::read_to_string(server.session.join("session.json")).unwrap();
    assert!(json.contains(&format!("\"trace_parent\": \"{TEXT}\"")), "{json}");
}

#[test]
fn a_span_that_is_none_is_refused() {
    let mut command = HYPERTRACE.command(["serve", "--file", "f", "-o", "o", "--traceparent"]);
    let ran = run(command.arg("00-0-0-0"));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("it has 8 bytes, not 55"), "{}", ran.stderr);
}

/// Runs the calling test in its own process, where a closed connection is closed at once. If other tests ran
/// in this process, a child that they have just forked would keep the connection open until the child runs
/// its program.
#[track_caller]
fn closing(body: impl FnOnce()) {
    child::in_own_process(body);
}

/// Starts a server that must not serve. If the server serves all the same, `timeout` ends the server after
/// 30 s. Returns the server's message.
#[track_caller]
fn refused(socket: &Path, session: &Path) -> String {
    let mut command = Command::new("timeout");
    command.args(["30", HYPERTRACE.0, "serve", "--socket"]).arg(socket).arg("-o").arg(session);
    run(&mut command).failed(2)
}

fn commit(client: &mut Client) {
    client.region_write(CONTROL, 8, &7u64.to_le_bytes()).unwrap();
}

fn epoch(client: &mut Client) -> u64 {
    let mut bytes = [0; 8];
    client.region_read(CONFIG, EPOCH, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Waits until a session that is being recorded has `commits` commits.
#[track_caller]
fn wait_for_commits(session: &Path, commits: u64) {
    wait_until("commits", || {
        HYPERTRACE.info(session)["total"]["reference_points"].as_u64().unwrap() >= commits
    });
}

/// Asserts that the other side closes a connection without sending anything.
#[track_caller]
fn assert_closed(mut stream: UnixStream) {
    match stream.read(&mut [0]) {
        Ok(n) => assert_eq!(n, 0),
        Err(why) => assert_eq!(why.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn a_socket_that_nobody_serves_is_replaced_and_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    drop(UnixListener::bind(&socket).unwrap());

    let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);
    commit(&mut Client::new(&socket).unwrap());

    assert_eq!(server.end()["total"]["reference_points"], 1);
    assert!(!socket.exists());
}

#[test]
fn of_two_servers_that_start_at_once_the_second_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    drop(UnixListener::bind(&socket).unwrap());
    let stale = fs::metadata(&socket).unwrap().ino();
    // This process locks the folder as a server does before it replaces the socket.
    let turn = fs::File::open(folder.path()).unwrap();
    flock(&turn, FlockOperation::LockExclusive).unwrap();
    let mut command = HYPERTRACE.command(["serve", "--socket"]);
    command.arg(&socket).arg("-o").arg(folder.path().join("S")).stderr(Stdio::piped());
    let server = command.spawn().unwrap();
    let files = format!("/proc/{}/fd", server.id());
    let waits = || {
        let mut files = fs::read_dir(&files).unwrap().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|file| file == folder.path()))
    };
    while !waits() {
        assert_eq!(fs::metadata(&socket).map_or(0, |socket| socket.ino()), stale);
    }

    fs::remove_file(&socket).unwrap();
    let first = UnixListener::bind(&socket).unwrap();
    drop(turn);
    let second = server.wait_with_output().unwrap();

    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("another process serves it"), "{said}");
    drop(first);
}

#[test]
fn the_options_for_a_vm_can_be_pasted_into_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name);
    let file = Server::of_file(HYPERTRACE, &in_folder("file"));
    let socket = Server::of_socket(HYPERTRACE, &in_folder("socket"), &[]);
    for mut server in [file, socket] {
        let said = server.stop();

        let (_, options) = said.split_once("start the VM with:\n").unwrap();
        let (options, _) = options.split_once("\nhypertrace: ").unwrap();
        let words = run(Command::new("sh").args(["-c", &format!("printf '%s\\n' {options}")])).ok();
        assert_eq!(Vec::from_iter(words.lines()), server.device);
    }
}

#[test]
fn a_vmm_is_run_with_the_options_and_its_end_ends_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (way, place, option) in [
        // QEMU reads a doubled comma as a comma within the value.
        ("--file", path("a, b"), format!("mem-path={},size=16M", path("a,, b").display())),
        ("--socket", path("a \"b\" 'c'"), r#"a \"b\" 'c'"}}"#.into()),
    ] {
        let out = path(way);
        let serve = |script: &str| {
            let mut command = HYPERTRACE.command(["serve", way]);
            command.arg(&place).arg("-o").arg(&out);
            run(command.args(["--", "sh", "-c", script, "vmm", "-m", "1G"]))
        };

        let ran = serve("printf '%s\n' \"$@\"; exit 7");

        assert_eq!(ran.code, Some(7), "{ran:?}");
        assert!(ran.stdout.starts_with("-m\n1G\n-"), "{ran:?}");
        assert!(ran.stdout.contains(&option), "{option}: {ran:?}");
        assert!(ran.stderr.contains("until the VMM ends"), "{ran:?}");
        assert_eq!(HYPERTRACE.info(&out)["total"]["records"], 0);
        assert!(!place.exists() || way == "--file");
        // A signal goes to the VMM.
        fs::remove_dir_all(&out).unwrap();
        let _ = fs::remove_file(&place);
        assert_eq!(serve("kill -TERM $PPID; exec sleep 60").code, Some(128 + 15));
    }
    // A VMM that cannot be started leaves nothing, so the next try may have the same names.
    let bad = path("bad");
    fs::write(&bad, "garbage\0").unwrap();
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o755)).unwrap();
    for way in ["--file", "--socket"] {
        let mut command = HYPERTRACE.command(["serve", way]);
        command.arg(path("place")).arg("-o").arg(path("new")).arg("--").arg(&bad);
        let ran = run(&mut command);
        assert_eq!(ran.code, Some(126), "{ran:?}");
        assert!(!path("place").exists() && !path("new").exists(), "{way}");
    }
    // The VMM may run in another current directory, so the path in its arguments is absolute.
    let mut command =
        HYPERTRACE.command(["serve", "--file", "f", "-o", "S", "--", "sh", "-c", "echo \"$@\""]);
    let shown = run(command.current_dir(folder.path())).stdout;
    assert!(shown.contains(&format!("mem-path={}/f,", folder.path().display())), "{shown}");
    let odd = OsStr::from_bytes(b"f\xff");
    let mut command = HYPERTRACE.command(["serve", "-o", "odd", "--file"]);
    let ran = run(command.arg(odd).args(["--", "true"]).current_dir(folder.path()));
    assert!(ran.code == Some(2) && ran.stderr.contains("UTF-8"), "{ran:?}");
    assert_eq!(HYPERTRACE.run(["serve", "--file", "f", "-o", "odd", "--"]).code, Some(2));
    let ran = HYPERTRACE.run(["serve", "--file", "f", "-o", "none", "--", "/no/such/vmm"]);
    assert_eq!(ran.code, Some(127), "{ran:?}");
    assert!(!Path::new("none").exists() && !Path::new("f").exists());
}

#[test]
fn a_socket_that_another_process_serves_and_any_other_file_are_left_alone() {
    let (folder, socket, server) = served(&["--once"]);
    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    let other = folder.path().join("other");

    assert!(refused(&socket, &other).contains("another process serves it"));
    assert!(refused(&file, &other).contains("no socket"));

    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert!(!other.exists());
    commit(&mut Client::new(&socket).unwrap());
    assert_eq!(server.end()["total"]["reference_points"], 1);
}

#[test]
fn a_server_where_a_session_is_being_recorded_names_the_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("S");
    let session = Session::create(SessionConfig::new(&path)).unwrap();

    let why = refused(&folder.path().join("socket"), &path);

    assert!(why.contains("a session is being recorded in it"), "{why}");
    assert!(why.contains("start `hypertrace serve` first"), "{why}");
    session.finish().unwrap();
    assert!(refused(&folder.path().join("socket"), &path).contains("is not empty"));
}

#[test]
fn a_socket_whose_process_accepts_nothing_is_left_alone_without_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let stream = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let address = SocketAddrUnix::new(&socket).unwrap();
    let listener = stream();
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let mut waiting = vec![stream()];
    while connect(waiting.last().unwrap(), &address).is_ok() {
        waiting.push(stream());
    }

    assert!(refused(&socket, &folder.path().join("S")).contains("another process serves it"));
}

#[test]
fn a_socket_that_another_server_has_made_at_the_path_stays_at_the_end() {
    let (_folder, socket, server) = served(&[]);
    fs::remove_file(&socket).unwrap();
    let _others = UnixListener::bind(&socket).unwrap();

    server.end();

    assert!(UnixStream::connect(&socket).is_ok());
}

#[test]
fn only_the_user_may_connect_whatever_the_mask_of_new_files_is() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, session] = ["socket", "session"].map(|name| folder.path().join(name));
    // The shell sets the umask, because other tests use this process's umask, too.
    let mut serve = Command::new("sh");
    serve.args(["-c", "umask 0; exec \"$@\"", "sh", HYPERTRACE.0, "serve", "--quiet"]);
    let mut server = serve.arg("-o").arg(&session).arg("--socket").arg(&socket).spawn().unwrap();
    wait_until("a socket", || {
        assert!(server.try_wait().unwrap().is_none(), "it has ended");
        socket.exists()
    });

    let mode = fs::metadata(&socket).unwrap().mode();

    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_descriptor_that_cannot_be_closed_does_not_keep_the_server_from_ending() {
    closing(|| {
        let (_folder, socket, mut server) = served(&[]);
        // With SO_LINGER, the close of a socket's last descriptor blocks until the other side has received
        // the socket's data.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _taken = listener.accept().unwrap();
        sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(600))).unwrap();
        lingers.set_nonblocking(true).unwrap();
        while (&lingers).write(&[0; 1 << 16]).is_ok() {}
        lingers.set_nonblocking(false).unwrap();
        let vmm = UnixStream::connect(&socket).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [lingers.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&sent));
        sendmsg(&vmm, &[IoSlice::new(VERSION)], &mut control, SendFlags::empty()).unwrap();
        let port = format!(":{:04X} ", lingers.local_addr().unwrap().port());
        drop(lingers);
        // In the kernel's list of connections, state 01 is an open connection.
        let is_open = || {
            let all = fs::read_to_string("/proc/net/tcp").unwrap();
            let mut lines = all.lines().filter_map(|line| line.split_once(&port));
            lines.any(|(_, rest)| rest.split(' ').nth(1) == Some("01"))
        };
        wait_until("closed", || !is_open());

        let (code, said) = server.ended();

        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("a descriptor that it sent cannot be closed"), "{said}");
        assert_eq!(HYPERTRACE.info(&server.session)["finished"], true);
    });
}

#[test]
fn connections_that_say_nothing_are_no_vms() {
    closing(|| {
        let (_folder, socket, server) = served(&["--once"]);
        for _ in 0..50 {
            drop(UnixStream::connect(&socket).unwrap());
        }

        let mut client = Client::new(&socket).unwrap();

        assert_eq!(epoch(&mut client), 0, "they begin no generation");
        commit(&mut client);
        drop(client);
        assert_eq!(server.end()["total"]["reference_points"], 1);
    });
}

#[test]
fn a_second_vmm_is_closed_at_once_and_served_when_the_first_has_ended() {
    closing(|| {
        let (_folder, socket, server) = served(&[]);
        let mut first = Client::new(&socket).unwrap();

        assert_closed(UnixStream::connect(&socket).unwrap());
        commit(&mut first);
        drop(first);
        // The second client connects at once, like a VMM that a script starts again.
        let mut second = Client::new(&socket).unwrap();

        assert_eq!(epoch(&mut second), 1);
        commit(&mut second);
        drop(second);
        let stat = server.end();
        assert_eq!(
            (&stat["total"]["reference_points"], &stat["total"]["lost"]),
            (&2.into(), &0.into())
        );
    });
}

#[test]
fn the_first_connection_that_is_closed_beside_each_vm_is_reported() {
    closing(|| {
        let (_folder, socket, mut server) = served(&[]);
        let refuse = |times| {
            let _served = Client::new(&socket).unwrap();
            (0..times).for_each(|_| assert_closed(UnixStream::connect(&socket).unwrap()));
        };

        refuse(3);
        refuse(0);
        refuse(1);

        let said = server.stop();
        let line =
            format!("closed another connection to {}: a server serves one VM", socket.display());
        // The server prints two lines when it starts, one line for each VM with closed connections, and one
        // line at its end.
        assert_eq!((said.matches(&line).count(), said.lines().count()), (2, 5), "{said}");
    });
}

#[test]
fn a_reset_of_a_vm_whose_programs_trace_is_reported_once() {
    let (_folder, socket, mut server) = served(&[]);
    let mut client = Client::new(&socket).unwrap();
    for _ in 0..2 {
        client.region_write(CONTROL, LEASE, &7u64.to_le_bytes()).unwrap();
        client.reset().unwrap();
    }
    drop(client);

    let said = server.stop();

    assert_eq!(said.matches("the VM was reset while its programs traced").count(), 1, "{said}");
    assert!(
        said.contains("nothing says how many events programs lost when the VM was reset"),
        "{said}"
    );
    assert_eq!(HYPERTRACE.info(&server.session)["device"]["reset_leased"], 2);
}

#[test]
fn a_vmm_does_not_wait_for_the_commands_of_one_that_has_ended() {
    closing(|| {
        let (_folder, socket, server) = served(&[]);
        let mut first = UnixStream::connect(&socket).unwrap();
        // Each reset after the first takes 100 ms.
        first.write_all(&[VERSION, &[COMMIT, RESET].concat().repeat(100)].concat()).unwrap();
        wait_for_commits(&server.session, 1);
        drop(first);

        let mut second = Client::new(&socket).unwrap();

        commit(&mut second);
        drop(second);
        server.end();
    });
}

#[test]
fn a_vmm_that_is_silent_in_a_message_stops_no_draining_and_keeps_its_place_for_5_s() {
    let (_folder, socket, server) = served(&[]);
    let mut silent = UnixStream::connect(&socket).unwrap();
    silent.write_all(&[VERSION, COMMIT, &COMMIT[..30]].concat()).unwrap();

    wait_for_commits(&server.session, 1);
    let mut next = None;
    wait_until("a place", || {
        next = Client::new(&socket).ok();
        next.is_some()
    });
    let mut next = next.unwrap();

    commit(&mut next);
    drop((next, silent));
    assert_eq!(server.end()["total"]["reference_points"], 2);
}

#[test]
fn vmms_that_come_and_go_in_a_loop_leave_nothing_behind() {
    closing(|| {
        let (_folder, socket, server) = served(&[]);
        let files = |what: &Path| fs::read_dir(what).unwrap().count();
        commit(&mut Client::new(&socket).unwrap());
        wait_for_commits(&server.session, 1);
        let before = files(&server.session.join("ctf"));

        for _ in 0..20 {
            drop(Client::new(&socket).unwrap());
        }

        let mut last = Client::new(&socket).unwrap();
        assert_eq!(epoch(&mut last), 21);
        assert_eq!(files(&server.session.join("ctf")), before);
        drop(last);
        server.end();
    });
}

#[test]
fn one_way_is_needed_and_two_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("S");
    let out = out.to_str().unwrap();

    let none = HYPERTRACE.run(["serve", "-o", out]);
    let both = HYPERTRACE.run(["serve", "--file", "f", "--socket", "s", "-o", out]);

    assert_eq!((none.code, both.code), (Some(2), Some(2)));
    assert!(none.stderr.contains("<--file <FILE>|--socket <PATH>>"), "{}", none.stderr);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn wrong_paths_and_sizes_are_refused_with_what_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let long = path(&"x".repeat(120));
    let cases = [
        (vec!["--socket".to_owned(), long], "a socket's path can have at most 107"),
        (vec!["--socket".to_owned(), path("none/socket")], "make it first"),
        (vec!["--file".to_owned(), path("none/file")], "make it first"),
        (["--size", "3M", "--file", &path("f")].map(str::to_owned).to_vec(), "the next is 4"),
        (["--size", "big", "--file", &path("f")].map(str::to_owned).to_vec(), "from 1M to 16G"),
    ];
    for (options, said) in cases {
        let mut command = HYPERTRACE.command(["serve", "-o"]);
        let ran = run(command.arg(folder.path().join("session")).args(&options));
        assert_eq!(ran.code, Some(2), "{options:?} {ran:?}");
        assert!(ran.stderr.contains(said), "{options:?} {ran:?}");
    }
}
