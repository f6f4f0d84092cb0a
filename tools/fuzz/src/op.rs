//! Operations of a guest.

use crate::input::Input;
use crate::setup::MAX_STEPS_EACH;
use crate::vmm::Act;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::{Geometry, PAGE, Region};
use hypertrace_abi::record::Header;
use hypertrace_abi::schema::id_of;

/// Path of an access to the device.
#[derive(Clone, Copy, Debug)]
pub enum Path {
    /// By region and offset.
    Chip,
    /// By offset into the MMIO window.
    Window,
    /// By guest-physical address. If the BAR is mapped, then the address is relative to the BAR.
    Pci,
}

/// An access to the device. The width may be invalid.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Path to the device.
    pub path: Path,
    /// Accessed region.
    pub region: Region,
    /// Offset from the region's start. The offset may be outside of the region.
    pub offset: u64,
    /// Width of the access, 0 to 16 bytes.
    pub width: usize,
}

/// Operation. Unless stated otherwise, client 0 performs the operation.
#[derive(Clone, Debug)]
pub enum Op {
    /// A load.
    Read(Access),
    /// A store.
    Write(Access, [u8; 16]),
    /// A load from PCI config space: offset and width.
    ConfigRead(u64, usize),
    /// A store to PCI config space: offset, width, bytes.
    ConfigWrite(u64, usize, [u8; 16]),
    /// Moves a BAR.
    Bar(Region, u64),
    /// Switches decoding.
    Decode(bool),
    /// Looks up an address.
    Find(u64),
    /// Stores to any word of the client's area: pages G and H, schema log, ring.
    Poke(u64, u64),
    /// Stores to the enable mask.
    Mask(u64, u64),
    /// Stores to the 2016 argument slots.
    Data(u64, u64),
    /// Stores to a word, as `Poke` does. The store happens while a drain reads records.
    Ambush(u64, u64),
    /// Writes a record at the head. The fields are the token, the sequence, the record's two header words,
    /// and the payload. If a block begins at the head, then the block's header comes first.
    Record(u64, u64, Header, Vec<u64>),
    /// Publishes the head.
    Publish,
    /// Moves the head without a record.
    Jump(u64),
    /// Writes a text to the schema log. The second field, if there is one, replaces the correct id, and the
    /// third field replaces the correct length.
    Schema(Vec<u8>, Option<u32>, Option<u32>),
    /// Writes the slot, and then stores to EMIT. The fields are the slot's seq, the value for EMIT, the id,
    /// the length in the header, the guest time, and the payload.
    Emit(u32, u64, u32, u16, u64, Vec<u64>),
    /// Stores to the 2016 register of any client.
    Legacy(u32, u64),
    /// Lets the VMM drain up to this many steps of each client.
    Pass(u64),
    /// Makes the next drains fail to write.
    Fail(u8),
    /// Lets the VMM replace the enable mask.
    SetMask(u8),
    /// Lets the VMM perform an action on its session.
    Host(Act),
    /// Client 1 emits this many events.
    Honest(u8),
    /// Client 1 makes a reference point.
    Point,
    /// Client 1 gets another holder.
    Lease,
    /// Client 1 polls.
    Poll,
}

const TEXTS: [&str; 9] = [
    "e(x:u64)",
    "s(s:str)",
    "a(a:[u64],s:str,b:u8)",
    "tick()",
    "event(struct:str,id:u64)",
    "e(x:u64",
    "e(x:u64,x:u64)",
    "honest(n:u64,inverse:u64,rest:[u64])",
    "lease(token:x64,pid:u32,tid:u32,clock:u32,name:str)",
];

impl Op {
    /// Decodes the next operation from any bytes.
    pub fn decode(input: &mut Input<'_>, geometry: &Geometry) -> Op {
        match input.below(46) {
            0..=2 => Op::Read(access(input, geometry)),
            3..=6 => {
                let access = access(input, geometry);
                Op::Write(access, bytes16(input))
            }
            7 => Op::ConfigRead(config_offset(input), input.below(17)),
            8 => {
                let (offset, width) = (config_offset(input), input.below(17));
                Op::ConfigWrite(offset, width, bytes16(input))
            }
            9 => Op::Bar(input.pick(&Region::ALL), address(input)),
            10 => Op::Decode(!input.one_in(3)),
            11 => Op::Find(address(input)),
            12 | 13 => Op::Poke(word(input), input.value()),
            14 => Op::Mask(input.value(), input.value()),
            15 => Op::Data(input.value(), input.value()),
            16 | 17 => Op::Ambush(word(input), input.value()),
            18..=22 => record(input),
            23 | 24 => Op::Publish,
            25 => Op::Jump(input.value()),
            26 | 27 => schema(input),
            28 => {
                let seq = u32::from(input.u8());
                let value = if input.one_in(8) { input.value() } else { seq.into() };
                let id = id(input);
                let payload = input.values(12);
                let told =
                    if input.one_in(8) { input.value() as u16 } else { payload.len() as u16 };
                Op::Emit(seq, value, id, told, input.value(), payload)
            }
            29 => Op::Legacy(u32::from(input.u8() % 4), input.value()),
            30..=32 => Op::Pass(1 + u64::from(input.u8()) % MAX_STEPS_EACH),
            33 => Op::Fail(input.u8() % 4),
            34 => Op::SetMask(input.u8()),
            35 | 40..=45 => Op::Host(Act::decode(input)),
            36 => Op::Honest(input.u8() % 64),
            37 => Op::Point,
            _ if input.one_in(3) => Op::Lease,
            _ => Op::Poll,
        }
    }
}

fn bytes16(input: &mut Input<'_>) -> [u8; 16] {
    (u128::from(input.value()) | u128::from(input.value()) << 64).to_le_bytes()
}

/// Decodes an access to any region. The width is 0 to 16 bytes. The offset is small, near a boundary, or
/// arbitrary.
fn access(input: &mut Input<'_>, geometry: &Geometry) -> Access {
    let path = input.pick(&[Path::Chip, Path::Window, Path::Pci]);
    let region = input.pick(&Region::ALL);
    let near = u64::from(input.u8());
    let offset = match input.below(8) {
        0 => near,
        1 => near * 8,
        2 => geometry.bar_size(region).wrapping_add(near).wrapping_sub(32),
        3 | 4 if region == Region::Control => {
            let page = geometry.control_pages_offset() + PAGE * (near >> 6);
            page + (near & 0x3f)
        }
        3 => geometry.client_offset(0) + near * 8,
        4 => geometry.client_offset(0) + PAGE + near,
        5 => geometry.rings_size().wrapping_add(near).wrapping_sub(16),
        6 => input.u32().into(),
        _ => input.value(),
    };
    Access { path, region, offset, width: input.below(17) }
}

fn config_offset(input: &mut Input<'_>) -> u64 {
    if input.one_in(8) { input.value() } else { u64::from(input.u8() % 72) }
}

fn address(input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0 => u64::from(input.u8()) << 16,
        1 => u64::from(input.u16()) << 32,
        2 => u64::from(input.u16()) << 16,
        _ => input.value(),
    }
}

/// Decodes the index of a word in a client's area. Half of the indices are in or near the first two pages.
fn word(input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0 => input.pick(&[0, 8, 9, 16, 0x80, 512, 513, 520, 521]),
        1 => u64::from(input.u16()) % 1024,
        _ => input.u16().into(),
    }
}

fn id(input: &mut Input<'_>) -> u32 {
    match input.below(8) {
        0 => input.u8().into(),
        1 => input.u32(),
        _ => id_of(input.pick(&TEXTS)),
    }
}

fn record(input: &mut Input<'_>) -> Op {
    let token = input.pick(&[1, 1, 1, 1, 2, 0, u64::MAX]);
    let sequence = input.value();
    let timestamp = if input.one_in(8) { input.value() } else { ticks() };
    let id = id(input);
    let flags = input.pick(&[0, 0, 0, 0, 1, 2, 3, 0xffff]);
    let payload = input.values(9);
    let words = if input.one_in(8) { input.value() as u16 } else { payload.len() as u16 };
    Op::Record(token, sequence, Header { timestamp, id, words, flags }, payload)
}

fn schema(input: &mut Input<'_>) -> Op {
    let mut text = match input.below(4) {
        0 => format!("m{}(a:u64,_b:str)", input.u8()).into_bytes(),
        1 => input.bytes(40),
        _ => input.pick(&TEXTS).as_bytes().to_vec(),
    };
    if input.one_in(6) && !text.is_empty() {
        let at = input.below(text.len().min(256));
        text[at] = input.u8();
    }
    let id = input.one_in(6).then(|| input.u32());
    let len = input.one_in(8).then(|| input.value() as u32);
    Op::Schema(text, id, len)
}
