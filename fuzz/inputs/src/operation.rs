//! What a guest can do.

use crate::bytes::Bytes;
use crate::guest::geometry;
use hypertrace_abi::layout::{PAGE, guest_page, host_page, register};
use hypertrace_device::Region;

/// A way to the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// None.
    Chip,
    /// The MMIO window.
    Window,
    /// The PCI function, wherever its BARs are now.
    Pci,
}

/// A load or a store that traps.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Which way.
    pub front: Front,
    /// From whose start `offset` counts.
    pub region: Region,
    /// Need not be in the region.
    pub offset: u64,
    /// 0 to 16 bytes.
    pub len: usize,
}

/// One thing that a guest does.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A load.
    Read(Access),
    /// A store of the first bytes of these.
    Write(Access, [u8; 16]),
    /// A load from config space.
    ConfigRead(u64, usize),
    /// A store to config space.
    ConfigWrite(u64, usize, [u8; 16]),
    /// A word of the hostile client's area; of all rings, if it is not
    /// contained.
    Poke(usize, u64),
    /// A word of the enable mask.
    Mask(usize, u64),
    /// A word of the argument slots.
    Data(usize, u64),
    /// A record in the ring. Where a block begins, its header first.
    Record {
        /// Which text's id.
        text: usize,
        timestamp: u64,
        /// Payload words that it says it has, if that is another number.
        told: Option<u16>,
        flags: u16,
        payload: Vec<u64>,
    },
    /// Head, so far from where the records end.
    Publish(u64),
    /// A text in the schema log: this one, with another id or a byte changed.
    Schema { text: usize, id: Option<u32>, flip: Option<(u8, u8)> },
    /// A slot, and a store to EMIT.
    Emit { text: usize, seq: u32, stored: u32, told: u16, payload: Vec<u64> },
    /// Code that keeps the rules leases the hostile client as it finds it, and
    /// emits so many events.
    Lease(u64, u8),
    /// The honest client emits so many events.
    Honest(u8),
    /// The honest client makes a reference point.
    Point,
    /// The VMM replaces the mask.
    SetMask(u8),
    /// A pass of the drain loop with this budget.
    Drain(usize),
}

/// Texts that a guest tells: good ones, one that is none, a reserved one.
pub const TEXTS: [&str; 8] = [
    "e(x:u64)",
    "tick()",
    "all(a:u8,b:i16,c:f64,d:bool,e:x64,f:str,g:[u64],h:i64)",
    "s(s:str)",
    "event(stream:[u64],id:str)",
    "honest(n:u64)",
    "e(x:u64",
    "lease(token:x64,pid:u32,tid:u32,clock:u32,name:str)",
];

/// Words of page G and, behind them, of page H that mean something.
const WORDS: [usize; 12] = [
    guest_page::HEAD,
    guest_page::LOST_FULL,
    guest_page::LOST_BUSY,
    guest_page::SCHEMA_LEN,
    guest_page::SLOT,
    guest_page::SLOT + 3,
    PAGE as usize / 8 + host_page::TAIL,
    PAGE as usize / 8 + host_page::SCHEMA_SEEN,
    PAGE as usize / 8 + host_page::LEASE,
    PAGE as usize / 8 + host_page::MASK_VERSION,
    PAGE as usize / 8 + host_page::REPLY,
    2 * PAGE as usize / 8,
];

impl Operation {
    /// The next one.
    pub fn decode(bytes: &mut Bytes<'_>) -> Operation {
        match bytes.byte() % 32 {
            0 | 1 => Operation::Read(access(bytes)),
            2..=4 => Operation::Write(access(bytes), bytes.array()),
            5 => Operation::ConfigRead(config_offset(bytes), bytes.below(17)),
            6 | 7 => {
                let (offset, len) = (config_offset(bytes), [4, 1, 2, 3, 8][bytes.below(5)]);
                Operation::ConfigWrite(offset, len, bytes.array())
            }
            8 | 9 => Operation::Poke(WORDS[bytes.below(WORDS.len())], bytes.number()),
            10 => Operation::Poke(bytes.short().into(), bytes.number()),
            11 => Operation::Mask(bytes.short().into(), bytes.number()),
            12 => Operation::Data(bytes.short().into(), bytes.number()),
            13..=17 => {
                let (text, shape) = (text(bytes), bytes.byte());
                Operation::Record {
                    text,
                    timestamp: bytes.number(),
                    told: (shape & 0xf0 == 0xf0).then(|| bytes.short()),
                    flags: (shape >> 4 & 7).into(),
                    payload: payload(bytes, usize::from(shape & 7)),
                }
            }
            18 => Operation::Publish(bytes.number()),
            19 | 20 => {
                let (text, odd) = (text(bytes), bytes.byte());
                Operation::Schema {
                    text,
                    id: (odd & 7 == 7).then(|| bytes.number() as u32),
                    flip: (odd & 0x70 == 0x70).then(|| (bytes.byte(), bytes.byte())),
                }
            }
            21 | 22 => {
                let (text, seq) = (text(bytes), bytes.number() as u32);
                let (odd, payload) = (bytes.byte(), payload(bytes, 3));
                Operation::Emit {
                    text,
                    seq,
                    stored: if odd & 7 == 7 { !seq } else { seq },
                    told: if odd & 0x70 == 0x70 { bytes.short() } else { payload.len() as u16 },
                    payload,
                }
            }
            23 => Operation::Lease(bytes.number(), bytes.byte() % 32),
            24..=26 => Operation::Honest(bytes.byte() % 64),
            27 | 28 => Operation::Point,
            29 => Operation::SetMask(bytes.byte()),
            _ => Operation::Drain(bytes.below(9)),
        }
    }
}

fn text(bytes: &mut Bytes<'_>) -> usize {
    bytes.below(TEXTS.len())
}

fn payload(bytes: &mut Bytes<'_>, len: usize) -> Vec<u64> {
    (0..len).map(|_| bytes.number()).collect()
}

fn config_offset(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        byte @ 0..0xc0 => (byte % 0x44).into(),
        // COMMAND and the BARs, which do the most.
        byte @ 0xc0..0xf8 => [4, 0x10, 0x14, 0x18, 0x20, 0x24, 5][usize::from(byte % 7)],
        _ => bytes.number(),
    }
}

fn access(bytes: &mut Bytes<'_>) -> Access {
    let g = geometry();
    let way = bytes.byte();
    let region = Region::ALL[usize::from(way % 4)];
    let (client, pages) =
        (u64::from(way >> 6), g.control_pages_offset() + 4096 * u64::from(way >> 6));
    let front = [Front::Chip, Front::Window, Front::Pci][usize::from(way >> 2) % 3];
    let offset = match (way >> 4) % 4 {
        0 => bytes.number(),
        1 => bytes.near(&[0, PAGE, g.bar_size(region), g.rings_size(), g.data_size(), u64::MAX]),
        2 if region == Region::Control => {
            let registers = [register::EMIT, register::KICK, register::STAMP, register::CLOCK];
            let register = registers.get(bytes.below(5)).copied().unwrap_or(register::LEASE);
            pages + register + bytes.below(8) as u64
        }
        2 => g.client_offset(0) + u64::from(bytes.short()),
        _ => client * 8 + bytes.below(8) as u64,
    };
    let len = [8, 4, 1, 2, 16, 0, 3, 5, 6, 7, 9, 12][bytes.below(12)];
    Access { front, region, offset, len }
}
