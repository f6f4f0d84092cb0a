//! Events, reference points, traced calls and a segment's locks do not allocate memory in the VMM.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use hypertrace::{Channel, Client, LeaseInfo, ProducerState, event};
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{guest_page, register};
use hypertrace_device::{Chip, ChipConfig, Geometry, Memory, Region};
use hypertrace_functions::decode::{Architecture, decode};
use hypertrace_functions::shadow::{Call, Return, Settings, Stacks};
use hypertrace_segment::{LockFile, token};
use hypertrace_trace::{Session, SessionConfig};
use std::sync::atomic::Ordering::Relaxed;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: this allocator passes everything to the system's allocator; the count is a thread-local without a
// destructor, which allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn chip(session: &Session) -> Chip {
    let geometry = Geometry { clients: 2, ..Geometry::default() };
    let memory = Memory::anonymous(geometry).unwrap();
    Chip::new(memory, &ChipConfig::default(), session.clone(), ())
}

#[test]
fn a_reference_point_allocates_nothing_on_the_vcpus_thread() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path().join("s"))).unwrap();
    let chip = chip(&session);
    session.attach("vcpu0");
    let geometry = *chip.geometry();
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let slot = &rings[geometry.client_offset(0) as usize / 8 + guest_page::SLOT..];
    let emit = geometry.control_pages_offset() + register::EMIT;
    let point = |seq: u64| {
        slot[0].store(seq | 0x1234_5678 << 32, Relaxed);
        slot[3].store(2, Relaxed);
        chip.write(Region::Control, emit, &seq.to_le_bytes());
        session.emit(event_type!("vcpu_exit", seq));
    };
    point(1);

    let made = allocations(|| (2..1002).for_each(point));

    assert_eq!(made, 0);
    chip.drain_all();
    assert_eq!(session.finish().unwrap().reference_points, 1001);
}

/// Locks are taken in signal handlers, and files are opened again in fork handlers.
#[test]
fn locks_and_tokens_allocate_nothing() {
    let file = LockFile::new(tempfile::tempfile().unwrap(), 0, 900);
    let other = LockFile::new(file.file().unwrap(), 0, LockFile::ANY);
    let (mut locked, mut refused, mut made_token) = (false, false, 0);

    let made = allocations(|| {
        locked = file.lock(7);
        file.reopen();
        refused = !file.lock(7);
        file.unlock(7);
        made_token = token();
    });

    assert_eq!(made, 0);
    assert!(locked && refused && made_token != 0);
    drop(other);
}

#[test]
fn the_drain_allocates_nothing_per_record() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(SessionConfig::new(dir.path().join("s"))).unwrap();
    let chip = chip(&session);
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let channel = Channel::local(&chip.config_page(), rings).unwrap();
    let state = ProducerState::new();
    let info = LeaseInfo { pid: 0, tid: 0, name: "test" };
    let client = Client::lease(channel, 0, &state, 7, &info).unwrap();
    let fill = |count: u64| {
        for i in 0..count {
            event!(client: &client, "tick", i, name = "some text");
        }
        chip.drain_all();
    };
    // The first pass opens the stream and declares the event.
    fill(10);

    let few = allocations(|| fill(100));
    let many = allocations(|| fill(10_000));

    assert!(many <= few + 100, "{few} allocations for 100 records, {many} for 10,000");
    assert_eq!(session.finish().unwrap().ring_events, 10_110);
}

#[test]
fn calls_and_returns_allocate_nothing_whatever_the_stacks() {
    let mut stacks = Stacks::new(Settings { stacks: 4, ..Settings::default() });
    let mut records = 0_u64;

    let made = allocations(|| {
        for time in 0..10_000_u64 {
            assert!(decode(Architecture::X86_64, &[0xe8, 0, 1, 0, 0], time).is_some());
            // The slots are on 7 stacks, each as deep as a stack can get.
            let slot = (1 << 63) + ((time % 7) << 14) + 0x4000 - 8 * (time % 1900);
            let call = Call { at: 1, slot, return_address: 6, target: Some(time) };
            stacks
                .call(&call, time, &mut |record| records += u64::from(record.to_bytes()[0] < 255));
            let ret = Return { at: time, slot: Some(slot), value: Some(6) };
            if time % 3 == 0 {
                stacks.ret(&ret, time, &mut |_| records += 1);
            }
        }
    });

    assert_eq!(made, 0);
    assert!(stacks.counts().evicted > 0 && records > 10_000, "{records} {:?}", stacks.counts());
}
