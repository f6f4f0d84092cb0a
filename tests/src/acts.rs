//! Actions of a hostile guest, as values that a property test generates and shrinks.

use hypertrace::ProducerState;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{guest_page, host_page};
use hypertrace_abi::schema::id_of;
use proptest::prelude::*;

use crate::forger::{Forger, collision};
use crate::host::Host;

/// Number of words of a page.
const PAGE: usize = 512;

/// Number that is likely to be wrong in an interesting way.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A fixed number.
    Plain(u64),
    /// A time that is this many ticks after the moment of its use.
    Now(i64),
}

impl Number {
    fn value(self) -> u64 {
        match self {
            Number::Plain(value) => value,
            Number::Now(ticks_on) => ticks().wrapping_add_signed(ticks_on),
        }
    }
}

/// Action of a guest.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the fields are values and their places
pub enum Act {
    /// Stores to a word of the client's area: pages G and H, schema log, ring.
    Poke(usize, Number),
    /// Stores to the enable mask.
    Mask(usize, u64),
    /// Moves head.
    Jump(Number),
    /// Writes an almost valid record, in a block whose header may be invalid.
    Record { text: usize, time: Number, told: Option<u16>, flags: u16, payload: Vec<Number> },
    /// Writes the text of a schema. If `id` is given, the text has this wrong id. If `flip` is given, a byte
    /// of the text is changed.
    Schema { text: usize, id: Option<u32>, flip: Option<(usize, u8)> },
    /// Makes a reference point.
    Emit { text: usize, seq: u32, time: Number, told: Option<u16>, payload: Vec<Number> },
    /// Stores to a register, or near one.
    Register { offset: u64, bytes: Vec<u8> },
    /// Lets an honest producer lease the client in the client's present state.
    Lease,
    /// Waits for the host to drain.
    Drain,
}

fn number() -> impl Strategy<Value = Number> {
    let odd = prop::sample::select(vec![0, 1, 2, 7, 100, 4096, 1 << 32, 1 << 63, u64::MAX]);
    prop_oneof![
        odd.prop_map(Number::Plain),
        any::<u64>().prop_map(Number::Plain),
        (0..100u64).prop_map(Number::Plain),
        (-1_000_000..1_000i64).prop_map(Number::Now),
    ]
}

/// Generates offsets of words that both the guest and the host use.
fn counter() -> impl Strategy<Value = usize> {
    let guest = [
        guest_page::HEAD,
        guest_page::LOST_FULL,
        guest_page::LOST_BUSY,
        guest_page::LOST_UNATTACHED,
        guest_page::SCHEMA_LEN,
        guest_page::SLOT,
        guest_page::SLOT + 3,
    ];
    let host = [host_page::TAIL, host_page::SCHEMA_SEEN, host_page::LEASE, host_page::REPLY];
    prop::sample::select([&guest[..], &host.map(|word| PAGE + word)].concat())
}

/// Generates any action.
pub fn act() -> impl Strategy<Value = Act> {
    let payload = || prop::collection::vec(number(), 0..6);
    let told = || prop::option::weighted(0.1, any::<u16>());
    let text = || 0..TEXTS;
    let time = || prop_oneof![6 => (-50..0i64).prop_map(Number::Now), 1 => number()];
    let record = (text(), time(), told(), 0..5u16, payload());
    let flip = prop::option::weighted(0.2, any::<(usize, u8)>());
    let schema = (text(), prop::option::weighted(0.2, any::<u32>()), flip);
    let emit = (text(), any::<u32>(), time(), told(), payload());
    let register = (0..0x30u64, prop::collection::vec(any::<u8>(), 0..9));
    prop_oneof![
        2 => (counter(), number()).prop_map(|(word, value)| Act::Poke(word, value)),
        2 => (any::<usize>(), number()).prop_map(|(word, value)| Act::Poke(word, value)),
        1 => any::<(usize, u64)>().prop_map(|(word, value)| Act::Mask(word, value)),
        1 => number().prop_map(Act::Jump),
        30 => record.prop_map(|(text, time, told, flags, payload)| Act::Record {
            text, time, told, flags, payload,
        }),
        4 => schema.prop_map(|(text, id, flip)| Act::Schema { text, id, flip }),
        4 => emit.prop_map(|(text, seq, time, told, payload)| Act::Emit {
            text, seq, time, told, payload,
        }),
        1 => register.prop_map(|(offset, bytes)| Act::Register { offset, bytes }),
        1 => Just(Act::Lease),
        3 => Just(Act::Drain),
    ]
}

const TEXTS: usize = 8;

/// Returns schema texts: valid texts, two texts with the same hash, an invalid text, and a reserved text.
fn texts() -> [String; TEXTS] {
    let (one, other) = collision();
    let plain = [
        "e(x:u64)",
        "a(a:[u64],s:str,b:u8)",
        "tick()",
        "event(struct:str,id:u64)",
        "e(x:u64",
        "lease(token:x64,pid:u32,tid:u32,clock:u32,name:str)",
    ];
    let [a, b, c, d, e, f] = plain.map(str::to_owned);
    [a, b, c, d, one, other, e, f]
}

/// Guest that performs actions on one client.
pub struct Actor<'h> {
    host: &'h Host,
    client: u32,
    forger: Forger<'h>,
    texts: [String; TEXTS],
}

impl<'h> Actor<'h> {
    /// Makes a guest that uses this client of the host's device.
    pub fn new(host: &'h Host, client: u32) -> Actor<'h> {
        Actor { host, client, forger: Forger::new(&host.chip, client), texts: texts() }
    }

    /// Performs an action.
    pub fn perform(&mut self, act: &Act) {
        let Actor { host, client, forger, texts } = self;
        let values = |numbers: &[Number]| numbers.iter().map(|n| n.value()).collect::<Vec<u64>>();
        match act {
            Act::Poke(word, value) => forger.poke(*word, value.value()),
            Act::Mask(word, value) => forger.mask(*word, *value),
            Act::Jump(by) => {
                forger.head = forger.head.wrapping_add(by.value());
                forger.publish();
            }
            Act::Record { text, time, told, flags, payload } => {
                if forger.at_block() {
                    forger.block(payload.first().map_or(0, |n| n.value()), u64::from(*flags));
                }
                let payload = values(payload);
                let told = told.unwrap_or(payload.len() as u16);
                forger.record(time.value(), id_of(&texts[*text]), told, *flags, &payload);
                forger.publish();
            }
            Act::Schema { text, id, flip } => {
                let mut bytes = texts[*text].clone().into_bytes();
                if let Some((at, byte)) = flip {
                    let at = at % bytes.len();
                    bytes[at] = *byte;
                }
                forger.schema(id.unwrap_or(id_of(&texts[*text])), &bytes);
            }
            Act::Emit { text, seq, time, told, payload } => {
                let payload = values(payload);
                let told = told.unwrap_or(payload.len() as u16);
                forger.emit(*seq, id_of(&texts[*text]), time.value(), told, &payload);
            }
            Act::Register { offset, bytes } => forger.register(*offset, bytes),
            Act::Lease => {
                let state = ProducerState::new();
                let client = host.lease(*client, &state, "\x1b[2Jguest\n");
                for n in 0..20u64 {
                    let (site, fields) = event_type!("ruled", n, text = "\x1b]0;");
                    client.emit(site, fields);
                }
                client.release();
            }
            Act::Drain => {
                host.chip.drain_all();
            }
        }
    }
}
