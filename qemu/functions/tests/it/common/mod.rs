//! A track, which makes the calls and returns of a guest and checks the records of its stacks.
#![allow(dead_code)] // each test uses a part of it

use hypertrace_functions::record::{Record, RecordType};
use hypertrace_functions::shadow::{Call, Jump, Linked, Return, Settings, Stacks};

/// Top of a kernel's stack.
pub const KERNEL: u64 = 0xffff_c900_0000_4000;
/// Top of another kernel's stack, in the next region.
pub const OTHER: u64 = KERNEL + 0x4000;

/// Stacks whose clock advances by 10 with each event.
pub struct Track {
    pub stacks: Stacks,
    pub records: Vec<Record>,
    pub time: u64,
}

impl Track {
    pub fn new(settings: Settings) -> Self {
        Track { stacks: Stacks::new(settings), records: Vec::new(), time: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.time += 10;
        self.time
    }

    pub fn call_by(&mut self, call: Call) {
        let time = self.tick();
        self.stacks.call(&call, time, &mut |record| self.records.push(record));
    }

    pub fn ret_by(&mut self, ret: Return) {
        let time = self.tick();
        self.stacks.ret(&ret, time, &mut |record| self.records.push(record));
    }

    /// Calls `target`: the return address goes to `slot`.
    pub fn call(&mut self, slot: u64, target: u64) {
        self.call_by(Call { at: 0x99, slot, target: Some(target), return_address: 0 });
    }

    /// Executes a return instruction that takes the return address from `slot`.
    pub fn ret(&mut self, slot: u64) {
        self.ret_by(Return { at: 0x98, slot: Some(slot), value: None });
    }

    /// Makes calls and returns. `call 24 b` calls the function at 0xb, and stores the return address 24 bytes
    /// below the top of the kernel's stack. `ret 24` takes the return address from this place.
    pub fn does(&mut self, events: &str) {
        for event in events.split(", ") {
            let words: Vec<&str> = event.split(' ').collect();
            let slot = KERNEL - words[1].parse::<u64>().unwrap();
            match words[..] {
                ["call", _, target] => self.call(slot, u64::from_str_radix(target, 16).unwrap()),
                ["ret", _] => self.ret(slot),
                _ => panic!("{event}"),
            }
        }
    }

    pub fn jump(&mut self, target: u64) {
        let time = self.tick();
        self.stacks.jump(&Jump { at: 0x97, target: Some(target) }, time, &mut |record| {
            self.records.push(record)
        });
    }

    pub fn linked(&mut self, event: Linked) {
        let time = self.tick();
        self.stacks.linked(&event, time, &mut |record| self.records.push(record));
    }

    pub fn pause(&mut self) {
        let time = self.tick();
        self.stacks.pause(time, &mut |record| self.records.push(record));
    }

    pub fn replay(&mut self) {
        let time = self.tick();
        self.stacks.replay(time, &mut |record| self.records.push(record));
    }

    /// Ends the track, and returns its records as text: `+2000@10` is an entry, and `-2000@20` is an exit.
    /// The depth indents the text.
    pub fn close(&mut self) -> Vec<String> {
        let time = self.tick();
        self.stacks.close(time, &mut |record| self.records.push(record));
        check(&self.records);
        self.records.iter().map(text).collect()
    }
}

fn text(record: &Record) -> String {
    let sign = if record.kind == RecordType::Entry { '+' } else { '-' };
    format!("{}{sign}{:x}@{}", " ".repeat(record.depth.into()), record.address, record.time)
}

/// Checks that depths balance, that exits have the addresses of their entries, and that no time runs
/// backwards.
pub fn check(records: &[Record]) {
    let mut stack = Vec::new();
    let mut last = 0;
    for record in records {
        assert!(record.time >= last, "{record:?} after {last}");
        last = record.time;
        match record.kind {
            RecordType::Entry => {
                assert_eq!(usize::from(record.depth), stack.len(), "{record:?}");
                stack.push(record.address);
            }
            RecordType::Exit => {
                assert_eq!(stack.pop(), Some(record.address), "{record:?}");
                assert_eq!(usize::from(record.depth), stack.len(), "{record:?}");
            }
            _ => panic!("{record:?}"),
        }
    }
    assert!(stack.is_empty(), "{stack:x?} have no exits");
}
