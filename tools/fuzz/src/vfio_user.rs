//! Target `vfio_user`. Whatever a VMM sends to the server of vfio-user, all answers of the server are whole
//! messages. When the VMM ends the connection, the server ends the connection, too, and can serve the next
//! VMM.

use crate::input::Input;
use crate::recorder::{Ambush, Recorder};
use crate::setup::Setup;
use hypertrace_device::adapter::vfio_user::serve;
use hypertrace_device::{Chip, PciFunction};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

/// Maximum number of messages of an input. All messages, and all replies, fit into a socket's buffers.
const MAX_MESSAGES: usize = 24;
/// Maximum size of a message's body in bytes.
const MAX_BODY: u16 = 512;
/// Size of a message's header in bytes.
const HEADER: usize = 16;

/// Commands of vfio-user.
const VERSION: u16 = 1;
const GET_INFO: u16 = 4;
const COMMANDS: u16 = 16;

/// Panics if a client can break a promise of the server.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let setup = Setup::decode(&mut input);
    let (memory, guest) = setup.memory();
    let sink = Recorder::new(guest, Arc::new(Ambush::default()), setup.session_info());
    let chip = Arc::new(Chip::new(memory, &setup.chip_config(), sink, ()));
    let function = PciFunction::new(chip);
    let mut sent = Vec::new();
    if !input.one_in(16) {
        sent.extend(version());
    }
    for _ in 0..MAX_MESSAGES {
        if input.is_empty() {
            break;
        }
        sent.extend(any_message(&mut input));
    }
    if input.one_in(4) {
        sent.truncate(input.u32() as usize % (sent.len() + 1));
    }
    let mut pieces = sent.chunks(1 + usize::from(input.u16()) % 700);

    exchange(&function, &mut pieces);

    // The next VMM is served.
    let info = message(GET_INFO, 0, &[0; 16]);
    let replies = exchange(&function, &mut [&version()[..], &info].into_iter());
    assert_eq!(replies, [(VERSION, 0), (GET_INFO, 0)]);
}

/// Sends these byte strings, and returns the command and the error of each reply.
fn exchange(function: &PciFunction, pieces: &mut dyn Iterator<Item = &[u8]>) -> Vec<(u16, u32)> {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut replies = Vec::new();
    thread::scope(|scope| {
        let served = scope.spawn(move || serve(function, &theirs));
        let mut reader = &ours;
        let received = scope.spawn(move || {
            let mut bytes = Vec::new();
            match reader.read_to_end(&mut bytes) {
                Ok(_) => bytes,
                Err(why) if why.kind() == ErrorKind::ConnectionReset => bytes,
                Err(why) => panic!("{why}"),
            }
        });
        for piece in pieces {
            // The server may have ended the connection.
            if (&ours).write_all(piece).is_err() {
                break;
            }
        }
        let _ = ours.shutdown(Shutdown::Write);
        served.join().expect("it does not panic").expect("the connection is one of this process");
        replies = received.join().expect("it does not panic");
    });
    let mut rest = &replies[..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("4 bytes"));
        assert!(rest.len() >= HEADER, "a part of a header");
        let size = word(4) as usize;
        assert!(size >= HEADER && size <= rest.len(), "{size} of {}", rest.len());
        all.push(((word(0) >> 16) as u16, word(12)));
        rest = &rest[size..];
    }
    all
}

/// Decodes a message: either any message, or a message with likely numbers that the server may accept.
fn any_message(input: &mut Input<'_>) -> Vec<u8> {
    let command = if input.one_in(8) { input.u16() } else { input.u16() % COMMANDS };
    let flags = if input.one_in(8) { input.u32() } else { u32::from(input.u8() & 1) << 4 };
    let mut body = Vec::new();
    // A body of an access begins with the offset, the region and the count.
    if input.one_in(2) {
        let offsets = [u64::from(input.u8()) * 4, input.value(), 4];
        body.extend(input.pick(&offsets).to_le_bytes());
        body.extend((u32::from(input.u8()) % 10).to_le_bytes());
        let counts = [4, 8, 1, input.u32()];
        body.extend(input.pick(&counts).to_le_bytes());
    }
    (0..input.u16() % MAX_BODY / 8).for_each(|_| body.extend(input.value().to_le_bytes()));
    body.truncate(usize::from(input.u16()));
    let mut bytes = message(command, flags, &body);
    if input.one_in(16) {
        let at = input.below(HEADER);
        bytes[at] = input.u8();
    }
    bytes
}

fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = (HEADER + body.len()) as u32;
    let mut bytes = vec![7, 0];
    bytes.extend(command.to_le_bytes());
    [size, flags, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(body);
    bytes
}

fn version() -> Vec<u8> {
    message(VERSION, 0, &[0, 0, 1, 0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn a_hostile_vmm_is_served_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            run(&bytes);
        }
    }

    #[test]
    fn no_bytes_are_an_input() {
        run(&[]);
    }
}
