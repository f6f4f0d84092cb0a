//! A private syslog daemon for tests.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::thread::{self, JoinHandle};

use crate::slow::Throttle;

const SOCKET: &str = "/dev/log";
/// Message that ends the daemon. No message of syslog begins with these bytes.
const END: &[u8] = b"end";

/// Shell commands for [`inside`](crate::namespace::inside). The commands mount a `/dev` with room for the
/// daemon's socket, and with the devices that programs need.
pub const DEV: &str = "mount -t tmpfs none /mnt
    for file in null zero full random urandom kvm; do
        [ ! -e /dev/$file ] || { : > /mnt/$file && mount --bind /dev/$file /mnt/$file; }
    done
    ln -s /proc/self/fd/0 /mnt/stdin
    mount --rbind /mnt /dev";

/// Daemon that reads and counts messages at `/dev/log`. Senders wait for room, so no message is dropped.
#[derive(Debug)]
pub struct Daemon {
    thread: JoinHandle<io::Result<u64>>,
}

impl Daemon {
    /// Starts a daemon that reads at the throttle's rate. The path `/dev/log` must be private to this
    /// process: see [`DEV`].
    ///
    /// # Errors
    /// If there is a socket already, or the socket cannot be made.
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

    /// Returns the number of messages sent so far.
    ///
    /// # Errors
    /// If the messages could not be read.
    pub fn messages(self) -> io::Result<u64> {
        UnixDatagram::unbound()?.send_to(END, SOCKET)?;
        self.thread.join().unwrap()
    }
}
