//! Tests that babeltrace2 reads metadata and stream files that the tests write without a session.

use hypertrace_abi::record::Header;
use hypertrace_abi::schema::Schema;
use hypertrace_format::packet::{Domain, PacketHeader};
use hypertrace_test_support::babeltrace2;
use hypertrace_trace::ctf::files::Files;
use hypertrace_trace::ctf::metadata::{ClassEntry, ClockEntry, class_body, tsdl};
use hypertrace_trace::ctf::packet_buffer::PacketBuffer;
use hypertrace_trace::ctf::stream::Stream;
use std::path::Path;

const UUID: [u8; 16] = [0x5a; 16];

fn clock(id: u32, name: &str, offset_ns: i128) -> ClockEntry {
    let mut uuid = UUID;
    uuid[15] ^= id as u8 + 1;
    ClockEntry { id, name: name.into(), uuid, frequency: 2_600_000_000, offset_ns }
}

/// A trace with one stream. The tests write each packet of the stream.
struct Trace {
    dir: tempfile::TempDir,
    files: Files,
    stream: Stream,
    buffer: PacketBuffer,
    header: PacketHeader,
    sequence: u64,
}

impl Trace {
    fn new(schemas: &[(&str, bool)], clocks: &[ClockEntry], file_bytes: u64) -> Trace {
        let dir = tempfile::tempdir().unwrap();
        let bodies: Vec<String> = schemas
            .iter()
            .map(|(text, point)| class_body(&Schema::parse(text).unwrap(), *point))
            .collect();
        let classes =
            bodies.iter().zip(16..).map(|(body, id)| ClassEntry { stream_id: 0, id, body });
        std::fs::write(dir.path().join("metadata"), tsdl(&UUID, None, None, clocks, classes))
            .unwrap();
        let header = PacketHeader::new(UUID, 0, Domain::Guest, 0, 0);
        let mut files = Files::at(dir.path(), 1).unwrap();
        let stream = Stream::create(&mut files, "guest-000", file_bytes, &header).unwrap();
        Trace { dir, files, stream, buffer: PacketBuffer::new(0), header, sequence: 0 }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn event(&mut self, timestamp: u64, id: u32, payload: &[u64], pad: usize) {
        let header = Header { timestamp, id, words: payload.len() as u16, flags: 0 };
        let free = self.buffer.free();
        free[..2].copy_from_slice(&header.to_words());
        free[2..2 + payload.len()].copy_from_slice(payload);
        self.buffer.add(2 + payload.len(), pad);
        if self.header.timestamp_begin == 0 {
            self.header.timestamp_begin = timestamp;
        }
        self.header.timestamp_end = timestamp;
        self.sequence += 1;
    }

    fn commit(&mut self) {
        self.stream.append(&mut self.files, &mut self.buffer, &self.header, self.sequence).unwrap();
        self.buffer.clear();
        self.header.timestamp_begin = 0;
        self.header.sequence = self.sequence;
    }
}

fn text(s: &str) -> Vec<u64> {
    let mut bytes = (s.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(s.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
}

#[test]
fn names_that_tsdl_reserves_are_read_unchanged() {
    let schema = "event(struct:u64,string:str,event:u8,id:i64,timestamp:[u64],_x:u8,integer:x64,\
                  enum:f64,clock:bool,stream:u64,typedef:u64,const:u64,__x:u64,char:u64,_Bool:u64,void:u64)";
    let mut trace = Trace::new(&[(schema, false)], &[clock(0, "host", 0)], 1 << 20);
    let mut payload = vec![1];
    payload.extend(text("hi"));
    payload.extend([
        2,
        -3i64 as u64,
        2,
        10,
        11,
        4,
        0xff,
        1.5f64.to_bits(),
        1,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
    ]);
    trace.event(10, 16, &payload, 0);
    trace.commit();

    let Some(lines) = babeltrace2::read_clean(trace.path()) else { return };

    assert_eq!(lines.len(), 1);
    for part in [
        "struct = 1",
        "string = \"hi\"",
        "event = 2",
        " id = -3",
        "timestamp = [ [0] = 10, [1] = 11 ]",
        " _x = 4",
        "integer = 0xFF",
        "enum = 1.5",
        "clock = 1",
        "__x = 8",
        "_Bool = 10",
        "void = 11",
    ] {
        assert!(lines[0].contains(part), "{part} not in {}", lines[0]);
    }
}

#[test]
fn a_reference_point_has_its_prefix_and_its_own_fields_of_the_same_name() {
    let mut trace = Trace::new(&[("e(cpu:u64,seq:str)", true)], &[clock(0, "host", 0)], 1 << 20);
    let mut payload = vec![7, 1, 2, 3, 99];
    payload.extend(text(""));
    trace.event(10, 16, &payload, 4);
    trace.commit();
    let Some(lines) = babeltrace2::read_clean(trace.path()) else { return };
    assert!(
        lines[0].contains("client = 7, cpu_ = 1, seq_ = 2, guest_time = 3, cpu = 99"),
        "{}",
        lines[0]
    );
}

#[test]
fn strings_of_every_length_may_end_a_packet() {
    let mut trace =
        Trace::new(&[("s(s:str)", false), ("tick()", false)], &[clock(0, "host", 0)], 1 << 20);
    let mut expected = 0;
    for len in 0..20usize {
        let s = "x".repeat(len);
        let words = text(&s);
        trace.event(100 + len as u64, 17, &[], 0);
        trace.event(100 + len as u64, 16, &words, words.len() * 8 - 4 - len);
        trace.commit();
        expected += 2;
    }
    let Some(lines) = babeltrace2::read_clean(trace.path()) else { return };
    assert_eq!(lines.len(), expected);
    assert!(lines[39].contains(&format!("s = \"{}\"", "x".repeat(19))), "{}", lines[39]);
}

#[test]
fn hostile_bytes_stay_on_their_line() {
    let mut trace = Trace::new(&[("s(s:str)", false)], &[clock(0, "host", 0)], 1 << 20);
    let bytes: Vec<u8> = (1..=255).collect();
    let mut packed = (bytes.len() as u32).to_le_bytes().to_vec();
    packed.extend(&bytes);
    packed.resize(packed.len().next_multiple_of(8), 0);
    let words: Vec<u64> =
        packed.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
    trace.event(1, 16, &words, packed.len() - 4 - bytes.len());
    trace.event(2, 16, &text("a\0b\nc"), 7);
    trace.commit();
    let Some(lines) = babeltrace2::read_clean(trace.path()) else { return };
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn an_empty_stream_and_a_negative_offset_are_read() {
    let clocks = [clock(0, "host", -1_500_000_000), clock(1, "guest1", 7)];
    let trace = Trace::new(&[("tick()", false)], &clocks, 1 << 20);
    assert_eq!(babeltrace2::read_clean(trace.path()).map_or(0, |l| l.len()), 0);
    let path = trace.path().to_owned();
    let Trace { dir: _dir, mut files, stream, .. } = trace;
    stream.close(&mut files).unwrap();
    assert_eq!(babeltrace2::read_clean(&path).map_or(0, |l| l.len()), 0);
}

#[test]
fn a_loss_is_reported_once_over_all_files() {
    let mut trace = Trace::new(&[("tick()", false)], &[clock(0, "host", 0)], 128 * 10);
    for n in 1..=12 {
        trace.event(n * 10, 16, &[], 0);
        if n == 3 {
            trace.header.events_discarded = 5;
        }
        trace.commit();
    }
    assert!(trace.path().join("guest-000-0002").exists());
    let Some(read) = babeltrace2::read(trace.path()) else { return };
    assert_eq!(read.complete(), 12);
    assert_eq!(read.stderr.matches("Tracer discarded 5 events").count(), 1, "{}", read.stderr);
    assert_eq!(read.stderr.matches("discarded").count(), 1, "{}", read.stderr);
}

#[test]
fn a_loss_before_a_streams_first_packet_is_reported() {
    let mut trace = Trace::new(&[("tick()", false)], &[clock(0, "host", 0)], 1 << 20);
    trace.header.events_discarded = i64::MAX as u64;
    trace.event(10, 16, &[], 0);
    trace.commit();
    let Some(read) = babeltrace2::read(trace.path()) else { return };
    read.complete();
    assert_eq!(read.stderr.matches("discarded").count(), 1, "{}", read.stderr);
}

#[test]
fn names_that_readers_take_for_one_another_are_read() {
    let schemas = ["a(_x:u8,x:u8)", "b(x:str,x_len:u8)", "c(x:str,_x_len:u8)", "d(__:u8,_:str)"];
    let classes = schemas.map(|schema| (schema, true));
    let trace = Trace::new(&classes, &[clock(0, "host", 0)], 1 << 20);
    let Some(events) = babeltrace2::read_clean(trace.path()) else { return };
    assert!(events.is_empty(), "{events:?}");
}
