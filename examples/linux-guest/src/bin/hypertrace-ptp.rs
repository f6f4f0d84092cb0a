//! Records pairs of readings: this guest's clock and its host's clock at the same time, as KVM gives both by
//! /dev/ptp0. Each pair is between two events. `hypertrace-ptp READINGS MILLISECONDS`: the milliseconds are
//! the pause between two readings.
#![allow(unsafe_code)] // an ioctl of <linux/ptp_clock.h>, which no crate here has

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use hypertrace::{Options, event, reference_point};
use rustix::time::{ClockId, clock_gettime};

/// `struct ptp_clock_time`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PtpTime {
    seconds: i64,
    nanoseconds: u32,
    reserved: u32,
}

impl PtpTime {
    fn ns(self) -> i64 {
        self.seconds * 1_000_000_000 + i64::from(self.nanoseconds)
    }
}

/// `struct ptp_sys_offset_precise`: the host's CLOCK_REALTIME, and this system's clocks at the same instant.
#[repr(C)]
#[derive(Default)]
struct Precise {
    device: PtpTime,
    realtime: PtpTime,
    raw: PtpTime,
    reserved: [u32; 4],
}

/// PTP_SYS_OFFSET_PRECISE, `_IOWR('=', 8, struct ptp_sys_offset_precise)`.
const SYS_OFFSET_PRECISE: u64 = 0xc040_3d08;

unsafe extern "C" {
    fn ioctl(fd: i32, request: u64, argument: *mut Precise) -> i32;
}

fn raw() -> i64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn main() -> ExitCode {
    let numbers = std::env::args().skip(1).map(|text| text.parse().ok());
    let Some(&[readings, pause]) = numbers.collect::<Option<Vec<u64>>>().as_deref() else {
        println!("usage: hypertrace-ptp READINGS MILLISECONDS");
        return ExitCode::from(2);
    };
    let clock = File::open("/dev/ptp0");
    let (Ok(clock), Ok(info)) = (clock, hypertrace::open(&Options::default())) else {
        println!("no /dev/ptp0, or no host");
        return ExitCode::FAILURE;
    };
    println!("clock {:?}", info.clock);
    for number in 0..readings {
        let _ = reference_point!("ptp_point", number);
        let mut precise = Precise::default();
        event!("ptp_before", raw_ns = raw());
        // SAFETY: the kernel writes the structure that the request names.
        let done = unsafe { ioctl(clock.as_raw_fd(), SYS_OFFSET_PRECISE, &mut precise) };
        let after = raw();
        event!("ptp_after", raw_ns = after);
        if done != 0 {
            println!("no reading: {}", std::io::Error::last_os_error());
            return ExitCode::FAILURE;
        }
        event!("ptp", raw_ns = precise.raw.ns(), host_unix_ns = precise.device.ns());
        thread::sleep(Duration::from_millis(pause));
    }
    ExitCode::SUCCESS
}
