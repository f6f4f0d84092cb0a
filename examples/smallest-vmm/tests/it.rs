//! Tests of the VMM's trace, and of a device with eventfds from another version of vmm-sys-util.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::process::Command;
use std::sync::Mutex;

use hypertrace_timeline::{EntryRef, Error, Given, Needs, Recording};
use hypertrace_vmm::{DeviceConfig, Hypertrace, Kick, Mapping, SessionConfig, Vm};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

#[test]
fn the_points_of_a_guest_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let vmm = Command::new(env!("CARGO_BIN_EXE_smallest-vmm")).arg(dir.path()).output().unwrap();
    assert!(vmm.status.success(), "{vmm:?}");
    assert_eq!(vmm.stdout, b"3 points, 0 lost\n");

    let mut events = Vec::new();
    let recording = Recording::open(&[Given::new(dir.path())]).unwrap();
    let read = recording.read(Needs::ALL, &mut |entry: &EntryRef<'_>| {
        if let EntryRef::Event(event) = entry
            && event.reference.is_some()
        {
            events.push(event.name.to_string());
        }
        Ok::<_, Error>(true)
    });

    assert!(read.unwrap().is_empty());
    assert_eq!(events, ["tick"; 3]);
}

/// Calls of a hypervisor that uses the eventfds of vmm-sys-util 0.12.
#[derive(Default)]
struct Calls(Mutex<Vec<(u64, EventFd)>>);

impl Vm for Calls {
    fn map(&self, _: &Mapping<'_>) -> io::Result<()> {
        Ok(())
    }

    fn unmap(&self, _: &Mapping<'_>) {}

    fn arm(&self, gpa: u64, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.lock().unwrap().push((gpa, older(eventfd)?));
        Ok(())
    }

    fn disarm(&self, gpa: u64, _: BorrowedFd<'_>) {
        self.0.lock().unwrap().retain(|(armed, _)| *armed != gpa);
    }
}

fn older(eventfd: BorrowedFd<'_>) -> io::Result<EventFd> {
    // SAFETY: the returned EventFd owns the new descriptor.
    Ok(unsafe { EventFd::from_raw_fd(eventfd.try_clone_to_owned()?.into_raw_fd()) })
}

#[test]
fn the_doorbell_is_armed_by_an_eventfd_of_an_older_crate() {
    let dir = tempfile::tempdir().unwrap();
    let device = DeviceConfig::new(1);
    let hypertrace = Hypertrace::start(SessionConfig::new(dir.path()), device).unwrap();
    let calls = Calls::default();

    hypertrace.device().place_window(&calls, 0xd000_0000).unwrap();

    let [(gpa, doorbell)] = &calls.0.lock().unwrap()[..] else { panic!("one doorbell") };
    assert_eq!(*gpa, 0xd000_0000 + kick_offset(&hypertrace));
    doorbell.write(1).unwrap();
    hypertrace.finish().unwrap();
}

fn kick_offset(hypertrace: &Hypertrace) -> u64 {
    let geometry = hypertrace.chip().geometry();
    geometry.window_offset(hypertrace_vmm::Region::Control) + geometry.kick_offset()
}

#[test]
fn a_kick_is_an_eventfd_of_an_older_crate() {
    let eventfd = EventFd::new(EFD_NONBLOCK).unwrap();
    // SAFETY: the eventfd is open.
    let theirs = unsafe { BorrowedFd::borrow_raw(eventfd.as_raw_fd()) };
    let kick = Kick::from(theirs.try_clone_to_owned().unwrap());

    older(kick.as_fd()).unwrap().write(2).unwrap();

    assert_eq!(eventfd.read().unwrap(), 2);
    eventfd.write(1).unwrap();
    kick.clear();
    assert_eq!(eventfd.read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}
