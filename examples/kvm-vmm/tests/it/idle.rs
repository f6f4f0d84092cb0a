//! The events of a VM that traces rarely are drained in time, although no timer runs between the events.

use crate::common;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{machine, run};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::{Consumer, Flow};
use hypertrace_abi::sink::{DrainSink, Drained, EventSink, ReferencePoint, SessionInfo, Status};
use hypertrace_device::{Chip, ChipConfig, DrainPolicy, Geometry, Kick, Memory};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_vmm::Device;
use kvm_vmm::{Answer, attach_window};

/// Number of events, and the pause before each.
const EVENTS: u64 = 7;
const PAUSE: Duration = Duration::from_millis(200);

/// Ticks per second of the guest's counter, as the device reports them.
const FREQUENCY: u64 = 1_000_000_000;

/// Sink that notes by how many ticks each event is late when it is drained.
#[derive(Default)]
struct Lateness {
    late: Mutex<Vec<u64>>,
    /// Ticks that KVM subtracts from the host's counter for the guest, as a reference point shows.
    offset: AtomicU64,
    passes: AtomicU64,
}

impl EventSink for Lateness {
    fn session_info(&self) -> SessionInfo {
        SessionInfo::default().with(|info| info.guest_frequency = FREQUENCY)
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.offset.store(point.host_time.wrapping_sub(point.guest_time), Relaxed);
        Status::Recorded
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Lateness {
    fn drain(&mut self, _: u32, consumer: &mut Consumer<'_>) -> Drained {
        let mut stage = vec![0; consumer.stage_words()];
        let mut late = self.late.lock().unwrap();
        let pulled = consumer.pull(&mut stage, |_, record| {
            let guest = ticks().wrapping_sub(self.offset.load(Relaxed));
            late.push(guest.saturating_sub(record.header.timestamp));
            Flow::Taken
        });
        consumer.commit();
        Drained { words: pulled.end - pulled.begin, more: pulled.more }
    }

    fn end_pass(&mut self) {
        self.passes.fetch_add(1, Relaxed);
    }

    fn quiet_for(&mut self) -> Duration {
        Duration::MAX
    }
}

#[test]
fn a_lone_event_is_drained_within_100_ms_though_the_host_keeps_no_timer() {
    let Some(mut machine) = machine(1) else {
        return;
    };
    let kick = Kick::new().unwrap();
    let config = ChipConfig::default().with(|config| {
        config.vcpu_clients = 1;
        config.has_doorbells = true;
    });
    let memory = Memory::anonymous(Geometry { clients: 1, ..Geometry::default() }).unwrap();
    let waker = kick.clone();
    let sink = Arc::<Lateness>::default();
    let chip = Arc::new(Chip::new(memory, &config, sink.clone(), waker));
    let drain = chip.drain_thread(&kick, DrainPolicy::default(), || Ok(())).unwrap();
    let device = Device::new(Arc::clone(&chip), kick);
    attach_window(&mut machine, &device, layout::DEVICE, Answer::Device).unwrap();
    let (begin, began) = (Instant::now(), ticks());
    let params = [ticks_of(PAUSE), 0, 0, 0];

    run(
        machine,
        &Args { device: layout::DEVICE, events: EVENTS, params, ..Args::new(Program::Sparse) },
    );

    let (elapsed, ticked) = (begin.elapsed(), ticks() - began);
    let passes = sink.passes.load(Relaxed);
    drain.finish();
    let mut late = sink.late.lock().unwrap().clone();
    late.sort_unstable();
    // The median is compared, because a busy machine may delay some events.
    let median = elapsed.mul_f64(late[late.len() / 2] as f64 / ticked as f64);
    assert!(median < Duration::from_millis(100), "{median:?} of {late:?}");
    let periods = elapsed.as_millis() / DrainPolicy::default().period.as_millis();
    assert!(u128::from(passes) < periods * 2 / 3, "{passes} passes in {periods} periods");
}

/// Returns the ticks of the counter in this time.
fn ticks_of(time: Duration) -> u64 {
    let (begin, began) = (Instant::now(), ticks());
    while begin.elapsed() < Duration::from_millis(20) {}
    let (elapsed, ticked) = (begin.elapsed(), ticks() - began);
    (ticked as f64 * time.as_secs_f64() / elapsed.as_secs_f64()) as u64
}
