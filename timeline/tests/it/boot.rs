//! Tests of boots of virtual machines: stages, exits and threads of simulated machines.

use hypertrace_test_support::boots::{KERNEL, OTHER, VCPU, VMM, Vm, booted};
use hypertrace_test_support::cpus::{ASLEEP, Cpus, ENDED};
use hypertrace_test_support::made::Made;
use hypertrace_test_support::trace_dat::Counted;
use hypertrace_timeline::boot::{Boots, Mark, Options};
use hypertrace_timeline::regions::Part;
use hypertrace_timeline::{Given, Recording};

fn boots(made: &Made, change: impl FnOnce(&mut Options)) -> Boots {
    let mut options = Options::default();
    change(&mut options);
    Boots::of(&Recording::open(&[Given::new(made.path())]).unwrap(), &options).unwrap()
}

/// Returns the names of a boot's stages, with their beginnings and ends since the VMM's start.
fn stages(boots: &Boots) -> Vec<(&str, i64, i64)> {
    let [boot] = &boots.boots[..] else { panic!("{:?}", boots.boots) };
    let begin = boot.stages[0].begin_ns;
    let stages = boot.stages.iter();
    stages.map(|stage| (&*stage.name, stage.begin_ns - begin, stage.end_ns - begin)).collect()
}

#[test]
fn stages_follow_one_another_from_the_vmms_start_to_its_end() {
    let boots = boots(&booted(), |_| {});

    let expected = [
        ("VMM", 0, 7_000),
        ("firmware", 7_000, 17_000),
        ("kernel", 17_000, 28_000),
        ("second vCPU", 28_000, 37_000),
        ("user space", 37_000, 48_500),
    ];
    assert_eq!(stages(&boots), expected);
    let boot = &boots.boots[0];
    assert!(boot.has_start && boot.has_end, "{boot:?}");
    assert_eq!((boot.pid, boot.vcpus, boot.duration_ns()), (Some(300), 2, 48_500));
    let points = Vec::from_iter(boot.points.iter().map(|point| &*point.name));
    assert_eq!(points, ["first POST code"]);
}

#[test]
fn exits_are_counted_by_what_they_touched_and_threads_add_up() {
    let boots = boots(&booted(), |_| {});

    let boot = &boots.boots[0];
    let exits = |stage: usize| {
        let all = boot.stages[stage].exits.iter();
        Vec::from_iter(all.map(|exit| (&*exit.what, exit.count, exit.ns)))
    };
    assert_eq!(exits(1), [("pio write 0x70", 1, 200), ("pio write 0x80", 1, 100)]);
    assert_eq!(exits(2), [("pio write 0x70", 50, 2_000), ("interrupt", 1, 100)]);
    for stage in &boot.stages[1..] {
        for thread in &stage.threads {
            let sum = thread.times.total();
            assert!(sum <= stage.duration_ns(), "{}: {thread:?}", stage.name);
        }
        let path = stage.path.iter().map(|step| step.ns).sum::<u64>();
        assert_eq!(path, stage.duration_ns(), "{stage:?}");
    }
    let first = &boot.stages[2].threads[0];
    assert_eq!((first.tid, first.vcpu), (301, Some(0)));
    assert_eq!(first.times.total(), boot.stages[2].duration_ns());
    let kernel = first.times.get(Part::Kernel) + first.times.get(Part::Vmm);
    assert!(first.times.get(Part::Guest) > 0 && kernel >= 2_000, "{first:?}");
}

#[test]
fn a_mark_begins_a_stage_and_another_one_ends_the_boot() {
    let mark: Mark = "clock=first kvm:kvm_pio where port == 0x70".parse().unwrap();

    let boots = boots(&booted(), |options| {
        options.marks = vec![mark];
        options.until = Some("second vCPU".into());
    });

    let expected = [
        ("VMM", 0, 7_000),
        ("firmware", 7_000, 9_010),
        ("clock", 9_010, 17_000),
        ("kernel", 17_000, 28_000),
    ];
    assert_eq!(stages(&boots), expected);
    assert!(boots.boots[0].has_end);
}

#[test]
fn a_recording_says_whether_the_last_stage_has_begun() {
    let made = booted();
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let has_begun = |until: &str, mark: &str| {
        let mut options = Options::default();
        (options.marks, options.until) = (vec![mark.parse().unwrap()], Some(until.into()));
        Boots::has_begun(&recording, &options, || false).unwrap()
    };

    for stage in ["VMM", "second vCPU", "user space"] {
        assert!(has_begun(stage, "kvm:kvm_pio"), "{stage}");
    }
    assert!(has_begun("clock", "clock=kvm:kvm_pio where port == 0x70"));
    assert!(!has_begun("clock", "clock=kvm:kvm_pio where port == 0x71"));
    assert!(!has_begun("kernel's image", "kvm:kvm_pio"));
    // A reader that is told to stop has not seen the stage.
    let mut options = Options::default();
    options.until = Some("VMM".into());
    assert!(!Boots::has_begun(&recording, &options, || true).unwrap());
}

#[test]
fn a_restored_guest_has_its_first_entry_and_its_first_program_as_marks() {
    let mut vm = Vm::new();
    // The guest touches a page that a thread of the VMM has to read first.
    vm.enter(10_000, 0, 0, KERNEL).exit(11_000, 0, 0x400, KERNEL);
    vm.0.at(11_500).switch(0, ASLEEP, VMM);
    vm.0.at(14_000).wake(0, 0, VCPU[0]).at(14_500).switch(0, ASLEEP, VCPU[0]);
    vm.enter(15_000, 0, 0, KERNEL).exit(16_000, 0, 0x60, 0x40_1000);
    vm.enter(16_100, 0, 0, 0x40_1000).exit(17_000, 0, 0x60, 0x40_1000);
    vm.0.at(17_100).switch(1, ASLEEP, VCPU[1]);
    vm.enter(17_200, 1, 1, KERNEL).exit(17_500, 1, 0x60, KERNEL);
    // The guest brings up the second CPU, which begins in real mode.
    vm.enter(17_600, 1, 1, 0x9a_000).exit(17_700, 1, 0x60, 0x9a_000);
    vm.enter(17_800, 1, 1, KERNEL).exit(17_900, 1, 0x60, KERNEL);

    let boots = boots(&vm.end(20_000), |options| options.is_restore = true);

    let expected = [("VMM", 0, 7_000), ("restored", 7_000, 13_000), ("user space", 13_000, 18_000)];
    assert_eq!(stages(&boots), expected);
    let restored = &boots.boots[0].stages[1];
    let faults = restored.exits.iter().find(|exit| exit.what == "npf").unwrap();
    assert_eq!((faults.count, faults.ns), (1, 4_000), "{restored:?}");
    let vcpu = restored.threads.iter().find(|thread| thread.vcpu == Some(0)).unwrap();
    let wait = &vcpu.waits[0];
    assert_eq!((wait.part, &*wait.cause, wait.ns), (Part::Blocked, "vmm-300", 2_505), "{vcpu:?}");
}

#[test]
fn a_mark_that_is_none_says_why() {
    for (text, why) in [
        ("", "a mark is [NAME=][first] EVENT"),
        ("first", "a mark is [NAME=][first] EVENT"),
        ("kvm:kvm_pio port == 1", "expected `where` in place of port"),
        ("kvm:kvm_pio where port = 1", "expected ==, !="),
    ] {
        let said = text.parse::<Mark>().unwrap_err().to_string();
        assert!(said.contains(why), "{text}: {said}");
    }
}

#[test]
fn a_recording_without_kvm_says_what_is_missing() {
    let mut cpus = Cpus::new(1, &[VMM]);
    cpus.at(2_000).switch(0, ASLEEP, VMM).at(3_000).switch(0, ASLEEP, OTHER);

    let boots = boots(&cpus.made(), |_| {});

    assert!(boots.boots.is_empty());
    let said = Vec::from_iter(boots.warnings.iter().map(ToString::to_string));
    assert!(said.iter().any(|line| line.contains("has no events of KVM")), "{said:?}");
}

#[test]
fn an_exit_that_lasts_into_the_next_stage_is_in_both_and_counts_once() {
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, KERNEL).exit(11_000, 0, 0x78, KERNEL);
    vm.0.at(12_000).switch(1, ASLEEP, VCPU[1]);
    vm.enter(13_000, 1, 1, KERNEL).exit(13_500, 1, 0x60, KERNEL);
    vm.enter(14_000, 0, 0, KERNEL).exit(15_000, 0, 0x60, KERNEL);

    let boots = boots(&vm.end(20_000), |_| {});

    let [.., kernel, second] = &boots.boots[0].stages[..] else { panic!("{boots:?}") };
    let halts = [kernel, second].map(|stage| {
        let halt = stage.exits.iter().find(|exit| exit.what == "hlt");
        halt.map(|exit| (exit.count, exit.ns))
    });
    assert_eq!(halts, [Some((1, 2_000)), Some((0, 1_000))]);
}

#[test]
fn a_vmm_that_goes_to_the_background_begins_where_it_was_made() {
    const CHILD: (u32, &str) = (303, "daemon");
    let mut cpus = Cpus::new(2, &[VMM, CHILD, VCPU[0]]);
    cpus.at(2_000).switch(0, ASLEEP, OTHER).start(0, false, VMM).switch(0, ASLEEP, VMM);
    cpus.at(3_000).execute(0).at(4_000).start(0, false, CHILD).exit(0, false);
    cpus.at(4_500).switch(0, ASLEEP, CHILD).start(0, true, VCPU[0]).switch(0, ASLEEP, VCPU[0]);
    let mut vm = Vm(cpus);
    vm.enter(10_000, 0, 0, KERNEL).exit(11_000, 0, 0x60, KERNEL);
    vm.0.at(12_000).exit(0, false).switch(0, ASLEEP, CHILD).exit(0, false);
    let trace = vm.0.trace();

    let boots = boots(&vm.made(trace), |_| {});

    assert_eq!(stages(&boots), [("VMM", 0, 6_000), ("kernel", 6_000, 8_000)]);
    assert_eq!(boots.boots[0].pid, Some(CHILD.0));
}

#[test]
fn two_vms_at_once_are_two_boots() {
    const OTHERS: [(u32, &str); 2] = [(400, "vmm2"), (401, "cpu0")];
    let mut vm = Vm::new();
    vm.0.own.extend(OTHERS);
    vm.0.at(6_000).switch(1, ASLEEP, OTHER).start(1, false, OTHERS[0]).switch(1, ASLEEP, OTHERS[0]);
    vm.0.execute(1).start(1, true, OTHERS[1]).switch(1, ASLEEP, OTHERS[1]);
    vm.enter(10_000, 0, 0, KERNEL).enter(11_000, 1, 0, KERNEL);
    vm.write(12_000, 1, (0, 0x70), 100, KERNEL);
    vm.exit(20_000, 0, 0x60, KERNEL).exit(21_000, 1, 0x60, KERNEL);

    let boots = boots(&vm.end(22_000), |_| {});

    let found = boots.boots.iter().map(|boot| (boot.pid, boot.stages.len(), boot.vcpus));
    assert_eq!(Vec::from_iter(found), [(Some(300), 2, 1), (Some(400), 2, 1)]);
    let writes = |boot: usize| {
        let mut all = boots.boots[boot].stages.iter().flat_map(|stage| &stage.exits);
        all.any(|exit| exit.what == "pio write 0x70")
    };
    assert_eq!([writes(0), writes(1)], [false, true]);
}

#[test]
fn time_in_which_events_were_lost_is_a_stage_of_its_own() {
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, 0xfff0).exit(15_000, 0, 0x60, 0xe000).enter(15_100, 0, 0, 0xe000);
    for n in 0..20 {
        vm.write(20_000 + 100 * n, 0, (0, 0x70), 40, KERNEL);
    }
    vm.exit(40_000, 0, 0x60, KERNEL);
    // Without the loss, one of the lost events would be the first that shows the kernel.
    let number = |time: u64| {
        let base = hypertrace_test_support::vcpu::HOST_BASE;
        let of = |event: &&(u64, u32, u32, Vec<u8>)| event.0 < base + time;
        vm.0.asked[0].iter().filter(of).count()
    };
    let (from, to) = (number(20_000), number(21_000));
    let trace = vm.0.trace_without(|all, cpu, number| {
        (!all && cpu == 0 && (from..to).contains(&number)).then_some(Counted(true))
    });

    let boots = boots(&vm.made(trace), |_| {});

    let expected = [("VMM", 0, 7_000), ("firmware", 7_000, 12_100), ("unknown", 12_100, 18_000)];
    let found = stages(&boots);
    assert_eq!(found[..3], expected, "{found:?}");
    assert_eq!((found[3].0, found[3].1), ("kernel", 18_000));
    // No event says that the VMM has ended.
    assert!(!boots.boots[0].has_end);
    let said = Vec::from_iter(boots.warnings.iter().map(ToString::to_string));
    assert!(said.iter().any(|line| line.contains("the kernel lost events")), "{said:?}");
}

#[test]
fn low_addresses_after_a_reset_are_no_user_space() {
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, KERNEL).exit(11_000, 0, 0x60, KERNEL);
    // The guest resets, and runs firmware that has moved itself.
    vm.enter(12_000, 0, 0, 0xfff0).exit(13_000, 0, 0x60, 0x7f00_0000);
    vm.enter(14_000, 0, 0, 0x7f00_0000).exit(15_000, 0, 0x60, KERNEL);
    vm.enter(16_000, 0, 0, 0x40_1000).exit(17_000, 0, 0x60, 0x40_1000);

    let boots = boots(&vm.end(20_000), |_| {});

    let expected = [("VMM", 0, 7_000), ("kernel", 7_000, 13_000), ("user space", 13_000, 18_000)];
    assert_eq!(stages(&boots), expected);
}

#[test]
fn a_mark_that_never_comes_and_an_end_that_is_none_are_said() {
    let boots = boots(&booted(), |options| {
        options.marks = vec!["disk=kvm:kvm_mmio".parse().unwrap()];
        options.until = Some("userspace".into());
    });

    assert_eq!(stages(&boots).len(), 5);
    let said = Vec::from_iter(boots.warnings.iter().map(ToString::to_string));
    for part in
        ["disk: no event after a vCPU's first entry fits the mark", "no stage \"userspace\" begins"]
    {
        assert!(said.iter().any(|line| line.contains(part)), "{said:?}");
    }
}

#[test]
fn several_losses_give_no_name_twice() {
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, 0xfff0);
    for n in 0..300 {
        vm.write(20_000 + 100 * n, 0, (0, 0x70), 40, 0xe000);
    }
    vm.exit(90_000, 0, 0x60, 0xe000);
    let trace = vm.0.trace_without(|all, cpu, number| {
        (!all && cpu == 0 && number > 20 && number % 200 == 0).then_some(Counted(true))
    });

    let boots = boots(&vm.made(trace), |_| {});

    let names = Vec::from_iter(stages(&boots).into_iter().map(|(name, ..)| name));
    assert!(names.iter().filter(|name| **name == "unknown").count() > 2, "{names:?}");
    let known = ["VMM", "firmware", "unknown", "firmware or later"];
    assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
}

#[test]
fn a_process_with_the_number_of_an_older_one_is_a_boot_of_its_own() {
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, KERNEL).exit(11_000, 0, 0x60, KERNEL);
    vm.0.at(12_000).exit(0, false).switch(0, ENDED, VMM).exit(0, false).switch(0, ENDED, OTHER);
    vm.0.at(12_500).switch(1, ENDED, VCPU[1]).exit(1, false).switch(1, ENDED, OTHER);
    vm.0.at(500_000).start(0, false, VMM).switch(0, ASLEEP, VMM).execute(0);
    vm.0.at(501_000).start(0, true, VCPU[0]).switch(0, ASLEEP, VCPU[0]);
    vm.enter(510_000, 0, 0, KERNEL).exit(511_000, 0, 0x60, KERNEL);
    vm.0.at(512_000).exit(0, false).switch(0, ENDED, VMM).exit(0, false).switch(0, ENDED, OTHER);
    let trace = vm.0.trace();

    let boots = boots(&vm.made(trace), |_| {});

    let found = boots.boots.iter().map(|boot| (boot.pid, boot.has_end, boot.duration_ns()));
    assert_eq!(Vec::from_iter(found), [(Some(300), true, 9_500), (Some(300), true, 12_000)]);
}

/// Divides a machine's time into stages at marks.
fn marked(made: &Made, marks: &[&str]) -> Boots {
    let mut options = Options::default();
    options.marks = marks.iter().map(|mark| mark.parse().unwrap()).collect();
    Boots::of_marks(&Recording::open(&[Given::new(made.path())]).unwrap(), &options).unwrap()
}

#[test]
fn marks_divide_a_recording_that_has_no_vcpu() {
    let mut cpus = Cpus::new(2, &[VMM, VCPU[0]]);
    cpus.at(2_000).switch(0, ASLEEP, OTHER).start(0, false, VMM).switch(0, ASLEEP, VMM);
    cpus.at(3_000).execute(0).at(4_000).start(0, true, VCPU[0]);
    cpus.at(5_000).switch(0, ASLEEP, VCPU[0]).at(9_000).exit(0, false).switch(0, ENDED, VMM);
    cpus.at(12_000).exit(0, false).switch(0, ENDED, OTHER);

    let boots = marked(
        &cpus.made(),
        &[
            "end=first sched:sched_process_exit where tid == 301",
            "exec=sched:sched_process_exec",
            "never=sched:sched_process_exit where tid == 1",
        ],
    );

    assert_eq!(stages(&boots), [("exec", 0, 6_000), ("end", 6_000, 9_000)]);
    let boot = &boots.boots[0];
    assert_eq!((boot.pid, boot.vcpus), (None, 0));
    for stage in &boot.stages {
        assert!(stage.exits.is_empty(), "{stage:?}");
        let path = stage.path.iter().map(|step| step.ns).sum::<u64>();
        assert_eq!(path, stage.duration_ns(), "{stage:?}");
    }
    let parts = |stage: usize, tid: u32, part: Part| {
        let mut all = boot.stages[stage].threads.iter();
        all.find(|thread| thread.tid == tid).map(|thread| thread.times.get(part))
    };
    assert_eq!(parts(0, 300, Part::OnCpu), Some(2_000));
    assert_eq!(parts(0, 301, Part::OnCpu), Some(4_000));
    assert_eq!(parts(1, 300, Part::OnCpu), Some(3_000));
    assert_eq!(parts(1, 7, Part::OnCpu), None, "a thread of another program");
    let said = Vec::from_iter(boots.warnings.iter().map(ToString::to_string));
    assert!(said.contains(&"never: no event fits the mark".to_owned()), "{said:?}");
}

#[test]
fn marks_divide_a_vm_without_standard_stages() {
    let boots = marked(&booted(), &["clock=kvm:kvm_pio where port == 0x70", "kvm:kvm_exit"]);

    // The first exit comes before the first access to the clock.
    assert_eq!(stages(&boots), [("kvm:kvm_exit", 0, 1_010), ("clock", 1_010, 40_500)]);
    let boot = &boots.boots[0];
    assert_eq!((boot.vcpus, boot.points.len()), (2, 0));
    let clock = boot.stages[1].exits.iter().find(|exit| exit.what == "pio write 0x70").unwrap();
    assert_eq!((clock.count, clock.ns), (50, 2_000 + 190));
    assert_eq!(boot.stages[1].threads[0].vcpu, Some(0));
}

#[test]
fn addresses_and_times_are_compared_exactly() {
    let mut vm = Vm::new();
    // Converted to floats, all three addresses would be equal.
    for (time, address) in [(10_000, KERNEL), (11_000, KERNEL + 1), (12_000, KERNEL + 2)] {
        vm.enter(time, 0, 0, address).exit(time + 10, 0, 0x60, address);
    }
    let made = vm.end(20_000);

    for (mark, at) in [
        (format!("kvm:kvm_entry where rip == {:#x}", KERNEL + 1), 11_000),
        (format!("kvm:kvm_entry where rip > {}", KERNEL + 1), 12_000),
        (format!("kvm:kvm_entry where rip != {}.0", KERNEL), 11_000),
        (format!("kvm:kvm_entry where rip > {}.0", KERNEL + 1), 11_000),
    ] {
        let boots = marked(&made, &["first=sched:sched_process_exec", &mark]);
        assert_eq!(stages(&boots)[1].1, at - 3_000, "{mark}");
    }
}

#[test]
fn events_that_are_lost_before_or_between_marks_are_said() {
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, KERNEL);
    for n in 0..40 {
        vm.write(20_000 + 100 * n, 0, (0, 0x70), 40, KERNEL);
    }
    vm.exit(40_000, 0, 0x60, KERNEL);
    let trace = |vm: &Vm| {
        vm.0.trace_without(|all, cpu, number| {
            (!all && cpu == 0 && (30..60).contains(&number)).then_some(Counted(true))
        })
    };
    let made = vm.made(trace(&vm));

    let between = marked(&made, &["start=kvm:kvm_entry"]);
    let names = Vec::from_iter(stages(&between).into_iter().map(|(name, ..)| name));
    assert_eq!(names, ["start", "unknown", "start or later"]);
    let before = marked(&made, &["end=kvm:kvm_exit where exit_reason == 0x60"]);
    let said = Vec::from_iter(before.warnings.iter().map(ToString::to_string));
    assert!(said.iter().any(|line| line.contains("lost events before the first mark")), "{said:?}");
}
