// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The vfio-user server with clients that are wrong, slow or hostile.
#![cfg(feature = "vfio-user")]

use crate::common;
use common::server::{
    CONFIG_SPACE, NO_REPLY, REFUSED, Server, access, bar, command, legacy_event, message, reply,
    version,
};
use common::{Call, points};
use hypertrace_abi::layout::Region;
use hypertrace_device::adapter::vfio_user::End;
use proptest::prelude::*;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Connects a client that has agreed on the version.
fn versioned() -> (Server, UnixStream) {
    let (server, mut stream) = Server::raw();
    stream.write_all(&version()).unwrap();
    reply(&mut stream);
    (server, stream)
}

/// Returns correct messages in the order of a VMM, except for the first message, which agrees on the version.
fn exchange() -> Vec<Vec<u8>> {
    let index = |size: usize, index: u8| {
        let mut body = vec![0; size];
        (body[0], body[8]) = (size as u8, index);
        body
    };
    let dma = [32, 0, 0, 0, 3, 0, 0, 0].into_iter().chain([0; 24]).collect::<Vec<u8>>();
    let magic = access(bar(Region::Config), 0x28, 8, &[]);
    let command_register = access(CONFIG_SPACE, 4, 2, &[2, 0]);
    vec![
        message(command::GET_INFO, 0, &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        message(command::GET_REGION_INFO, 0, &index(32, 0)),
        message(command::GET_REGION_INFO, 0, &index(32, 7)),
        message(command::GET_IRQ_INFO, 0, &index(16, 0)),
        message(command::SET_IRQS, 0, &index(20, 0)),
        message(command::DMA_MAP, 0, &dma),
        message(command::REGION_WRITE, 0, &command_register),
        message(command::REGION_READ, 0, &magic),
        legacy_event(0, 7),
        message(command::DMA_UNMAP, 0, &dma[..24]),
    ]
}

/// Sends only these bytes. Returns the command and error of each reply, and the end.
fn exchanged(bytes: &[u8]) -> (Vec<(u16, u32)>, End) {
    let (server, mut stream) = Server::raw();
    let mut reader = stream.try_clone().unwrap();
    let received = thread::spawn(move || {
        let mut bytes = Vec::new();
        // If the server closes the connection with unread bytes, the read fails, so its result is ignored.
        let _ = reader.read_to_end(&mut bytes);
        bytes
    });
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let end = server.end();
    drop(stream);
    let received = received.join().unwrap();
    let mut rest = &received[..];
    let mut replies = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        replies.push(((word(0) >> 16) as u16, word(12)));
        rest = &rest[word(4) as usize..];
    }
    (replies, end)
}

#[test]
fn bytes_that_come_one_by_one_are_a_message_like_others() {
    let (server, mut stream) = Server::raw();
    for byte in version() {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(reply(&mut stream).0, command::VERSION);

    // The client sends two messages in one piece. The first message wants no reply.
    stream.write_all(&[legacy_event(NO_REPLY, 1), legacy_event(0, 2)].concat()).unwrap();
    let (answered, error, body) = reply(&mut stream);

    let echo = access(bar(Region::Control), 8, 8, &[]);
    assert_eq!((answered, error, body), (command::REGION_WRITE, 0, echo));
    assert_eq!(points(&server.sink).len(), 2);
    drop(stream);
    assert_eq!(server.end(), End::Closed);
}

#[test]
fn an_exchange_that_is_cut_anywhere_is_served_up_to_its_last_whole_message() {
    let messages: Vec<_> = [version()].into_iter().chain(exchange()).collect();
    let bytes = messages.concat();
    let ends: Vec<usize> = messages
        .iter()
        .scan(0, |end, message| {
            *end += message.len();
            Some(*end)
        })
        .collect();
    for cut in 0..=bytes.len() {
        let (replies, end) = exchanged(&bytes[..cut]);
        let whole = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!((replies.len(), end), (whole, End::Closed), "{cut}");
        assert!(replies.iter().all(|(_, error)| *error == 0), "{cut} {replies:?}");
    }
}

#[test]
fn a_command_that_cannot_be_is_refused_and_the_next_one_is_served() {
    let (server, mut stream) = versioned();
    let far = access(9, u64::MAX, 8, &[]);
    let long = access(CONFIG_SPACE, 0, 1 << 20, &[]);
    let index = [0, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0];
    for (command, body, more) in [
        // A reply with an error is as long as the client expects: header and data, up to the largest load.
        (command::REGION_READ, &far[..], 8),
        (command::REGION_READ, &long, 4096),
        (command::REGION_READ, &long[..7], 0),
        (command::REGION_WRITE, &far, 0),
        (command::REGION_WRITE, &long, 0),
        (command::GET_REGION_INFO, &index, 0),
        (command::GET_REGION_INFO, &[], 0),
        (command::GET_IRQ_INFO, &index, 0),
        (6, &index, 0),
        (99, &[], 0),
        (0, &[1], 0),
    ] {
        stream.write_all(&message(command, 0, body)).unwrap();
        let (answered, error, echo) = reply(&mut stream);
        let expected = [body, &vec![0; more]].concat();
        assert_eq!((answered, error, echo), (command, REFUSED, expected));
    }
    stream.write_all(&message(command::GET_INFO, 0, &[0; 16])).unwrap();
    assert_eq!(reply(&mut stream).1, 0);
    drop(stream);
    assert_eq!(server.end(), End::Closed);
}

#[test]
fn bytes_after_which_nothing_can_be_found_end_the_connection() {
    let sized = |size: u32| {
        let mut bytes = message(command::GET_INFO, 0, &[]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        [version(), bytes].concat()
    };
    for bytes in [
        message(command::GET_INFO, 0, &[0; 16]),
        message(command::VERSION, 0, &[]),
        message(command::VERSION, 0, &[1, 0, 0, 0]),
        message(command::VERSION, 1, &[0, 0, 1, 0]),
        sized(0),
        sized(15),
        sized((16 << 10) + 1),
        sized(u32::MAX),
    ] {
        let (server, mut stream) = Server::raw();
        stream.write_all(&bytes).unwrap();
        assert!(matches!(server.end(), End::Protocol(_)), "{bytes:?}");
        drop(stream);
    }
}

#[test]
fn the_longest_message_is_served() {
    let longest = message(command::DMA_MAP, 0, &vec![0; (16 << 10) - 16]);
    let (replies, end) = exchanged(&[version(), longest].concat());
    assert_eq!((replies, end), (vec![(command::VERSION, 0), (command::DMA_MAP, 0)], End::Closed));
}

#[test]
fn a_version_is_taken_with_any_text_after_it() {
    for text in [&b""[..], b"\0", b"{\"capabilities\":{}}", b"{\"capabilities\":", &[0xff; 3000]] {
        let body = [&[0, 0, 1, 0], text].concat();
        let (_server, mut stream) = Server::raw();
        stream.write_all(&message(command::VERSION, 0, &body)).unwrap();

        let (_, error, body) = reply(&mut stream);

        assert_eq!((error, &body[..4]), (0, &[0, 0, 1, 0][..]), "{text:?}");
        assert!(body.ends_with(b"}\0"), "{text:?}");
    }
}

/// The clients run at the same time, because one after the other they would take too long.
#[test]
fn a_client_that_is_silent_in_the_middle_of_something_is_left_and_a_silent_vm_is_not() {
    let begin = Instant::now();
    let (mute, silent) = Server::raw();
    let (halfway, mut half) = versioned();
    half.write_all(&legacy_event(0, 1)[..20]).unwrap();
    let (slow, mut bits) = versioned();
    let (lives, mut vm) = versioned();
    let (greedy, mut many) = versioned();
    // If a server waits without a limit, this thread makes the test fail instead of hang.
    let all = [&silent, &half, &bits, &many].map(|stream| stream.try_clone().unwrap());
    let (ended, is_ended) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if is_ended.recv_timeout(Duration::from_secs(30)) == Err(RecvTimeoutError::Timeout) {
            all.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    });
    // This thread sends commands and reads no replies, so replies and then commands fill the buffers.
    let filled = thread::spawn(move || {
        let query = message(command::GET_INFO, 0, &[0; 16]).repeat(64);
        while many.write_all(&query).is_ok() {}
    });
    // This thread sends a byte now and then, but never a whole message.
    let sent = thread::spawn(move || {
        let event = legacy_event(0, 1);
        for byte in event.iter().cycle().take(event.len() - 1) {
            if bits.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(300));
        }
    });

    let ends = [mute, halfway, slow, greedy].map(Server::end);
    drop(ended);
    watch.join().unwrap();

    for (end, what) in ends.iter().zip(["whole message", "whole message", "whole", "reply"]) {
        assert!(matches!(end, End::Protocol(why) if why.contains(what)), "{ends:?}");
    }
    assert!(begin.elapsed() >= Duration::from_secs(5), "a VM has time");
    filled.join().unwrap();
    sent.join().unwrap();
    vm.write_all(&legacy_event(0, 1)).unwrap();
    assert_eq!(reply(&mut vm).1, 0);
    drop(vm);
    assert_eq!(lives.end(), End::Closed);
}

#[test]
fn descriptors_in_any_number_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory");
    let memory = File::create(&path).unwrap();
    let (server, mut stream) = versioned();
    let dma = message(command::DMA_MAP, 0, &[0; 32]);
    for many in [1, 16, 17, 200] {
        for _ in 0..40 {
            let fds = vec![memory.as_raw_fd(); many];
            stream.send_with_fds(&[&dma[..]], &fds).unwrap();
            assert_eq!(reply(&mut stream).1, 0);
            assert_eq!(descriptors_of(&path), 1, "the test's own");
        }
    }
    // Descriptors may come with any byte of a message.
    for byte in &dma {
        stream.send_with_fds(&[&[*byte][..]], &[memory.as_raw_fd(); 16]).unwrap();
    }
    assert_eq!(reply(&mut stream).1, 0);
    assert_eq!(descriptors_of(&path), 1, "the test's own");
    drop(stream);
    assert_eq!(server.end(), End::Closed);
}

/// Returns the number of descriptors of a file that this process has.
fn descriptors_of(file: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file)).count()
}

#[test]
fn resets_in_a_loop_begin_ten_generations_a_second_at_most() {
    const ROUNDS: u32 = 6;
    let (server, mut stream) = versioned();
    let begin = Instant::now();
    let reset = message(command::RESET, 0, &[]);
    for _ in 0..ROUNDS {
        stream.write_all(&[legacy_event(NO_REPLY, 1), reset.repeat(100)].concat()).unwrap();
        (0..100).for_each(|_| assert_eq!(reply(&mut stream).1, 0));
    }

    assert!(begin.elapsed() >= Duration::from_millis(100) * (ROUNDS - 1));
    let calls = server.sink.calls.lock().unwrap();
    let generations = calls.iter().filter(|call| matches!(call, Call::Generation(_))).count();
    assert_eq!(generations, ROUNDS as usize);
}

#[test]
fn commands_of_a_client_that_is_gone_wait_for_no_reset() {
    const RESETS: usize = 1000;
    let (server, mut stream) = versioned();
    let reset = message(command::RESET, NO_REPLY, &[]);
    stream.write_all(&[legacy_event(NO_REPLY, 1), reset].concat().repeat(RESETS)).unwrap();
    drop(stream);

    let sink = server.sink.clone();
    assert_eq!(server.end(), End::Closed);

    let calls = sink.calls.lock().unwrap();
    let generations = calls.iter().filter(|call| matches!(call, Call::Generation(_))).count();
    assert!(generations < RESETS, "{generations}");
}

/// Returns any bytes that a client may send.
fn any_messages() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop::sample::select(vec![0u32, NO_REPLY, 1]);
    let any_message = (0u16..20, flags, prop::collection::vec(any::<u8>(), 0..80));
    let messages = prop::collection::vec(any_message, 0..12);
    let tail = prop::collection::vec(any::<u8>(), 0..40);
    (any::<bool>(), messages, tail).prop_map(|(begins, messages, tail)| {
        let mut bytes = if begins { version() } else { Vec::new() };
        for (command, flags, body) in &messages {
            bytes.extend(message(*command, *flags, body));
        }
        bytes.extend(tail);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a client sends, the server ends when the client ends.
    #[test]
    fn any_bytes_are_served_or_refused(bytes in any_messages()) {
        exchanged(&bytes);
    }

    #[test]
    fn commands_in_any_order_are_served(messages in Just(exchange()).prop_shuffle()) {
        let bytes: Vec<u8> = version().into_iter().chain(messages.concat()).collect();
        let (replies, end) = exchanged(&[bytes, version()].concat());
        prop_assert_eq!(replies.len(), messages.len() + 2);
        prop_assert!(replies.iter().all(|(_, error)| *error == 0), "{:?}", replies);
        prop_assert_eq!(end, End::Closed);
    }
}
