// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the whole time of exits for each reason: the time in the kernel, the time in the VMM, and the
//! waits until the guest runs again.

use crate::made_regions::*;
use hypertrace_test_support::trace_dat::{
    KVM_EMULATE_INSN_ID, KVM_FPU_ID, KVM_MMIO_ID, KVM_USERSPACE_EXIT_ID, SCHED_SWITCH_ID,
    SCHED_WAKEUP_ID,
};
use hypertrace_test_support::vcpu::{self, Vcpu, What};
use hypertrace_timeline::regions::{Breakdown, Part, Regions};

/// Makes a vCPU whose regions have a load and a point each.
fn loads_and_points(regions: u64) -> Vcpu {
    let mut vcpu = Vcpu::new(0, 5);
    vcpu.point(1 << 32);
    vcpu.preempted(1_000);
    for id in 0..regions {
        // The guest's times have a bound.
        vcpu.work(5_000);
        vcpu.begin(id);
        vcpu.work(5_000);
        vcpu.load(id);
        vcpu.point(id);
        vcpu.work(5_000);
        vcpu.end(id);
    }
    vcpu.preempted(1_000);
    vcpu.point(2 << 32);
    vcpu
}

/// Returns the number of exits for a reason, and the exits' times in the kernel, in the VMM and in waits.
fn exits(regions: &Regions, name: &str) -> (f64, [u64; 3]) {
    let exits = &regions.groups[0].total.exits;
    let found = exits.iter().find(|exit| *exit.reason == *name);
    found.map_or((0.0, [0; 3]), |e| (e.count, [e.kernel_ns, e.vmm_ns, e.waits_ns]))
}

#[test]
fn exits_have_the_time_until_the_guest_runs_again() {
    let vcpu = loads_and_points(200);
    let [_, kernel, vmm, runnable, blocked] = vcpu.truth;
    let loads = vcpu.loads;

    let regions = all(&with_kernel(&[vcpu], |_| true));

    let points = [kernel - loads[0], vmm - loads[1], runnable + blocked - loads[2]];
    assert_eq!(exits(&regions, "mmio read"), (200.0, loads));
    assert_eq!(exits(&regions, "mmio write"), (200.0, points));
    let group = &regions.groups[0];
    let breakdowns = [&group.breakdown.median, &group.breakdown.p99, &group.breakdown.slowest]
        .map(|b| b.as_ref().unwrap());
    for breakdown in breakdowns.into_iter().chain([&group.total]) {
        let Breakdown { exits, times, .. } = breakdown;
        let kernel: u64 = exits.iter().map(|exit| exit.kernel_ns).sum();
        let vmm: u64 = exits.iter().map(|exit| exit.vmm_ns).sum();
        assert_eq!((kernel, vmm), (times.get(Part::Kernel), times.get(Part::Vmm)));
    }
    let sums = &regions.sums(0.0..=1.0)[0];
    assert_eq!(sums.total.exits.iter().map(|exit| exit.vmm_ns).sum::<u64>(), vmm);
}

#[test]
fn the_vmms_event_tells_the_reason_without_the_kernels_events_of_exits() {
    let mut vcpu = loads_and_points(200);
    vcpu.events.retain(|(_, what)| match what {
        What::Kernel(id, _) => [SCHED_SWITCH_ID, SCHED_WAKEUP_ID].contains(id),
        _ => true,
    });
    let mut number = 0;
    for (_, what) in &mut vcpu.events {
        if matches!(what, What::Vmm(vcpu::EXIT, _)) {
            // After the first point, each load is followed by a point.
            let name = if number % 2 == 1 { "mmio_read" } else { "mmio_write" };
            *what = What::VmmText(vcpu::NAMED_EXIT, name);
            number += 1;
        }
    }
    let (vmm, loads) = (vcpu.truth[2], vcpu.loads[1]);

    let regions = all(&with_kernel(&[vcpu], |_| true));

    assert_eq!(exits(&regions, "mmio read").1[1], loads);
    assert_eq!(exits(&regions, "mmio write").1[1], vmm - loads);
}

#[test]
fn an_exit_without_an_access_has_a_reason_of_its_own() {
    let mut vcpu = loads_and_points(50);
    let mut ended = 0;
    // After the first point, each load is followed by a point. The first loads are turned into exits for HLT,
    // and only their ways to the VMM keep their events.
    vcpu.events.retain_mut(|(_, what)| {
        let is_load = ended < 100 && ended % 2 == 1;
        match what {
            What::Kernel(KVM_MMIO_ID | KVM_EMULATE_INSN_ID, _) => return !is_load,
            What::Kernel(KVM_USERSPACE_EXIT_ID, payload) if is_load => payload[0] = 5,
            What::Kernel(KVM_FPU_ID, payload) if payload[0] == 1 => ended += 1,
            _ => {}
        }
        true
    });
    let loads = vcpu.loads[1];

    let regions = all(&with_kernel(&[vcpu], |_| true));

    assert_eq!(exits(&regions, "hlt").1[1], loads);
    assert_eq!(exits(&regions, "mmio read"), (0.0, [0; 3]));
}
