//! Shadow stacks with any calls and returns, because a guest may report anything.

use crate::common;
use common::check;
use hypertrace_functions::record::Record;
use hypertrace_functions::shadow::{Call, Jump, Linked, MAX_FRAMES, Return, Settings, Stacks};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Call(Call),
    Return(Return),
    Jump(Jump),
    Linked(Linked),
    Begins(u64),
    Pause,
    Replay,
    Space(u64),
}

/// Generates slots of a few stacks, and any other slots. Some of the stacks are near each other, and some
/// stacks are far apart.
fn slot() -> impl Strategy<Value = u64> {
    let stack = prop_oneof![
        Just(0xffff_c900_0000_4000_u64),
        Just(0xffff_c900_0000_8000),
        Just(0x7fff_0000_0000),
        Just(0x7fff_0001_0000),
        Just(0),
    ];
    prop_oneof![
        20 => (stack, 0_u64..40).prop_map(|(top, depth)| top.wrapping_sub(8 * depth)),
        1 => any::<u64>(),
    ]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0x1000_u64..0x1040]
}

fn event() -> impl Strategy<Value = Event> {
    let call = (address(), slot(), address(), proptest::option::of(address())).prop_map(
        |(at, slot, return_address, target)| Event::Call(Call { at, slot, return_address, target }),
    );
    let ret = (address(), proptest::option::of(slot()), proptest::option::of(address()))
        .prop_map(|(at, slot, value)| Event::Return(Return { at, slot, value }));
    let jump = (address(), proptest::option::of(address()))
        .prop_map(|(at, target)| Event::Jump(Jump { at, target }));
    let link = (address(), proptest::option::of(address()))
        .prop_map(|(at, target)| Linked::Call(Call { at, target, ..Call::default() }));
    let back = address().prop_map(|at| Linked::Return(Return { at, ..Return::default() }));
    let linked = prop_oneof![
        3 => link,
        3 => back,
        2 => slot().prop_map(Linked::Stored),
        2 => slot().prop_map(Linked::Loaded),
        1 => Just(Linked::StackPointerSet),
    ];
    let others = prop_oneof![
        2 => jump,
        2 => address().prop_map(Event::Begins),
        1 => Just(Event::Pause),
        1 => Just(Event::Replay),
        1 => (0_u64..3).prop_map(Event::Space),
    ];
    prop_oneof![10 => call, 10 => ret, 10 => linked.prop_map(Event::Linked), 7 => others]
}

fn settings() -> impl Strategy<Value = Settings> {
    let min = prop_oneof![Just(0_u64), 0..50_u64];
    let depth = prop_oneof![Just(MAX_FRAMES), 0_usize..5];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (1_usize..5, min, depth, flags).prop_map(
        |(stacks, min, depth, (paused, nested, named_at_start))| Settings {
            stacks,
            min,
            depth,
            paused,
            nested,
            named_at_start,
            ..Settings::default()
        },
    )
}

fn report(stacks: &mut Stacks, event: &Event, time: u64, out: &mut impl FnMut(Record)) {
    match event {
        Event::Call(call) => stacks.call(call, time, out),
        Event::Return(ret) => {
            stacks.ret(ret, time, out);
        }
        Event::Jump(jump) => stacks.jump(jump, time, out),
        Event::Linked(event) => stacks.linked(event, time, out),
        Event::Begins(at) => stacks.begins(*at),
        Event::Space(space) => stacks.set_space(*space),
        Event::Pause => stacks.pause(time, out),
        Event::Replay => stacks.replay(time, out),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 5000 }))]

    #[test]
    fn depths_balance_and_no_time_runs_backwards(
        settings in settings(),
        events in proptest::collection::vec((event(), 0_u64..100), 0..200),
    ) {
        let mut stacks = Stacks::new(settings);
        let mut records = Vec::new();
        for (event, time) in &events {
            report(&mut stacks, event, *time, &mut |record| records.push(record));
        }
        stacks.close(1000, &mut |record| records.push(record));

        check(&records);
        for record in &records {
            prop_assert!(usize::from(record.depth) < settings.depth);
        }
    }

    #[test]
    fn calls_in_order_on_several_stacks_have_no_misses(
        turns in proptest::collection::vec((0_u64..4, any::<bool>()), 0..400),
    ) {
        let tops = [0xffff_c900_0000_4000, 0xffff_c900_0000_8000, 0x7fff_0000_0000, 0x7ffe_0000_0000_u64];
        let mut depths = [0_u64; 4];
        let mut stacks = Stacks::new(Settings::default());
        let mut records = Vec::new();
        let mut calls = 0;
        for (time, (stack, is_call)) in (1..).zip(turns) {
            let index = stack as usize;
            let out = &mut |record| records.push(record);
            if is_call {
                depths[index] += 1;
                let slot = tops[index] - 16 * depths[index];
                calls += 1;
                stacks.call(&Call { slot, target: Some(stack + 1), ..Call::default() }, time, out);
            } else if depths[index] > 0 {
                let slot = Some(tops[index] - 16 * depths[index]);
                depths[index] -= 1;
                stacks.ret(&Return { slot, ..Return::default() }, time, out);
            }
        }
        stacks.close(1000, &mut |record| records.push(record));

        check(&records);
        let counts = stacks.counts();
        prop_assert_eq!(counts.calls, calls);
        prop_assert_eq!((counts.unmatched, counts.before, counts.vanished), (0, 0, 0));
    }
}
