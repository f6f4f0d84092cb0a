//! A syslog daemon of a test's own.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::thread::{self, JoinHandle};

use crate::slow::Throttle;

const SOCKET: &str = "/dev/log";
/// What ends the daemon: no message of syslog's begins so.
const END: &[u8] = b"end";

/// For [`behind`](crate::namespace::behind): a `/dev` with room for the daemon's socket, and as much of
/// the machine's as programs need.
pub const DEV: &str = "mount -t tmpfs none /mnt && \
    for file in null zero full random urandom kvm; do \
        [ ! -e /dev/$file ] || { : > /mnt/$file && mount --bind /dev/$file /mnt/$file; }; \
    done && ln -s /proc/self/fd/0 /mnt/stdin && mount --rbind /mnt /dev";

/// Reads messages at `/dev/log`, and counts them. What finds no room waits: nothing is dropped.
#[derive(Debug)]
pub struct Daemon {
    thread: JoinHandle<io::Result<u64>>,
}

impl Daemon {
    /// Begins, at the throttle's rate. The path is the whole process's, so it must be [its own](DEV).
    ///
    /// # Errors
    /// If there is a socket already, or can be none.
    pub fn start(mut throttle: Throttle) -> io::Result<Daemon> {
        let socket = UnixDatagram::bind(SOCKET)?;
        let thread = thread::spawn(move || {
            let (mut messages, mut message) = (0, [0; 4096]);
            loop {
                let len = socket.recv(&mut message)?;
                if &message[..len] == END {
                    return Ok(messages);
                }
                messages += 1;
                throttle.pass(len as u64);
            }
        });
        Ok(Daemon { thread })
    }

    /// How many messages were sent until now.
    ///
    /// # Errors
    /// If they could not be read.
    pub fn messages(self) -> io::Result<u64> {
        UnixDatagram::unbound()?.send_to(END, SOCKET)?;
        self.thread.join().unwrap()
    }
}
