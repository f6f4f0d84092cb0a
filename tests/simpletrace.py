#!/usr/bin/env python3
"""Reads a simpletrace v4 file, written from the format's description alone.

    simpletrace.py [--counts] TRACE-EVENTS-ALL TRACE

TRACE-EVENTS-ALL has the program's declarations, one per line. Every rule of the
format is checked; at a violation the reader prints its offset on stderr and ends
with status 1. Valid records are printed on stdout, as one JSON object each:

    {"offset": 24, "mapping": "name", "id": 7}
    {"offset": 51, "event": "name", "ns": 1, "pid": 2, "args": [-1, {"hex": "ff00"}]}
    {"offset": 99, "dropped": 12, "ns": 1, "pid": 2}

A string is {"hex": its bytes}. --counts prints only the numbers of records, in one
object.

The file, in the byte order of the machine that wrote it, without padding:

    header   u64 ~0, u64 0xf2b177cb0aa429b4, u64 4
    mapping  u64 0, u64 id, u32 length, name
    event    u64 1, u64 id, u64 ns, u32 length from id on, u32 pid, arguments
    dropped  an event of id 0xfffffffffffffffe with one argument: the number

An argument is a u64; a `char *` is a u32 length and its bytes.
"""

import json
import re
import struct
import sys
import time

HEADER_ID = 0xFFFFFFFFFFFFFFFF
MAGIC = 0xF2B177CB0AA429B4
VERSION = 4
MAPPING, EVENT = 0, 1
DROPPED = 0xFFFFFFFFFFFFFFFE
# From the id to the arguments: id, ns, length, pid.
FIXED = 24
# Greatest length of a name, string or record of these programs.
MAX = 1 << 20
# Times before 2001 are not Unix times in nanoseconds.
EARLIEST = 10**18

# Bits and sign of the integers that a declaration may have: no types of an emulator,
# nor types that only a header defines.
INTEGERS = {
    "bool": (1, False), "char": (8, True), "short": (16, True), "int": (32, True),
    "long": (64, True), "int8_t": (8, True), "int16_t": (16, True),
    "int32_t": (32, True), "int64_t": (64, True), "ssize_t": (64, True),
    "ptrdiff_t": (64, True), "uint8_t": (8, False), "uint16_t": (16, False),
    "uint32_t": (32, False), "uint64_t": (64, False), "size_t": (64, False),
    "uintptr_t": (64, False),
}
# Texts that a format may not contain.
REFUSED = ("%m", "\\n")
MAX_ARGUMENTS = 10


class Wrong(Exception):
    """A violation of the format, with its place."""


def c_type(words):
    """Returns the kind of a type: "string", "pointer", or bits and sign."""
    # QEMU's reader compares the text of a type to recognise a string.
    is_string = words in (["char", "*"], ["const", "char", "*"])
    words = [word for word in words if word != "const"]
    stars = words.count("*")
    base = [word for word in words if word != "*"]
    if is_string:
        return "string"
    if base == ["void"] and stars:
        return "pointer"
    sign = [word for word in base if word in ("signed", "unsigned")]
    rest = [word for word in base if word not in sign]
    if len(rest) > 1 and "int" in rest:
        rest.remove("int")
    if rest == ["long", "long"]:
        rest = ["long"]
    if not rest and sign:
        rest = ["int"]
    if len(rest) != 1 or rest[0] not in INTEGERS or len(sign) > 1:
        raise Wrong("no type: %r" % " ".join(words))
    if stars:
        return "pointer"
    bits, signed = INTEGERS[rest[0]]
    return bits, signed and sign != ["unsigned"]


def declarations(text):
    """Returns the types of each event's arguments, by the event's name."""
    events = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = re.fullmatch(r"((?:disable\s+)*)(\w+)\s*\(([^()]*)\)\s*\"(.*)", line)
        if not found:
            raise Wrong("line %d: no declaration: %r" % (number, line))
        disabled, name, arguments, form = found.groups()
        if any(refused in form for refused in REFUSED):
            raise Wrong("line %d: a format that is refused: %r" % (number, form))
        types = []
        if arguments.split() != ["void"]:
            for argument in arguments.split(","):
                words = re.findall(r"\w+|\*", argument)
                if len(words) < 2 or words[-1] == "*":
                    raise Wrong("line %d: no argument: %r" % (number, argument))
                types.append(c_type(words[:-1]))
        if len(types) > MAX_ARGUMENTS:
            raise Wrong("line %d: %d arguments" % (number, len(types)))
        if name in events:
            raise Wrong("line %d: %s is declared twice" % (number, name))
        if not disabled:
            events[name] = types
    return events


class File:
    """A file or pipe with its current offset."""

    def __init__(self, path):
        self.file = open(path, "rb")
        self.offset = 0
        self.begin = 0

    def wrong(self, why, *values):
        raise Wrong("offset %d: %s" % (self.begin, why % values))

    def read(self, length, what):
        data = self.file.read(length)
        self.offset += len(data)
        if len(data) != length:
            self.wrong("the file ends in %s", what)
        return data

    def unpack(self, form, what):
        return struct.unpack("=" + form, self.read(struct.calcsize("=" + form), what))

    def next_record(self):
        """Returns the type of the next record, None at the end."""
        self.begin = self.offset
        data = self.file.read(8)
        self.offset += len(data)
        if not data:
            return None
        if len(data) != 8:
            self.wrong("the file ends in a record's type")
        return struct.unpack("=Q", data)[0]


def value(file, kind, word):
    """Converts a word to a value of its type."""
    if kind == "pointer":
        return word
    bits, signed = kind
    number = word - (1 << 64) if signed and word >> 63 else word
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    if not low <= number < high:
        file.wrong("%d is no value of %d bits", number, bits)
    return number


def arguments(file, kinds, data):
    """Returns the arguments in a record, which have to fill it."""
    values = []
    at = 0
    for kind in kinds:
        size = 4 if kind == "string" else 8
        if at + size > len(data):
            file.wrong("%d bytes of arguments end before argument %d", len(data), len(values) + 1)
        (word,) = struct.unpack_from("=I" if kind == "string" else "=Q", data, at)
        at += size
        if kind != "string":
            values.append(value(file, kind, word))
        elif at + word > len(data):
            file.wrong("a string of %d bytes in %d", word, len(data) - at)
        else:
            values.append({"hex": data[at:at + word].hex()})
            at += word
    if at != len(data):
        file.wrong("%d bytes behind the last of %d arguments", len(data) - at, len(kinds))
    return values


def mapping(file, names, events):
    number, length = file.unpack("QI", "a mapping")
    if not 0 < length <= MAX:
        file.wrong("a name of %d bytes", length)
    name = file.read(length, "a name").decode("utf-8", "backslashreplace")
    if name not in events:
        file.wrong("%r is not declared", name)
    if number in (DROPPED, HEADER_ID):
        file.wrong("%r has a reserved id", name)
    if names.get(number, name) != name:
        file.wrong("id %d is %r and %r", number, names[number], name)
    if name in names.values() and number not in names:
        file.wrong("%r has two ids", name)
    names[number] = name
    return {"offset": file.begin, "mapping": name, "id": number}


def event(file, names, events, latest):
    number, ns, length, pid = file.unpack("QQII", "an event")
    if not FIXED <= length <= MAX:
        file.wrong("an event of %d bytes", length)
    data = file.read(length - FIXED, "an event's arguments")
    if not EARLIEST <= ns <= latest:
        file.wrong("a time of %d ns, and it is %d", ns, latest)
    if pid == 0:
        file.wrong("no process")
    if number == DROPPED:
        (dropped,) = arguments(file, [(64, False)], data)
        if dropped == 0:
            file.wrong("nothing was dropped")
        return {"offset": file.begin, "dropped": dropped, "ns": ns, "pid": pid}
    if number not in names:
        file.wrong("an event of id %d, which has no name so far", number)
    name = names[number]
    args = arguments(file, events[name], data)
    return {"offset": file.begin, "event": name, "ns": ns, "pid": pid, "args": args}


def records(path, events):
    """Yields each record of a file."""
    file = File(path)
    if file.unpack("QQQ", "its header") != (HEADER_ID, MAGIC, VERSION):
        file.wrong("no header of a simpletrace file of version 4")
    names = {}
    while True:
        kind = file.next_record()
        if kind is None:
            return
        if kind == MAPPING:
            yield mapping(file, names, events)
        elif kind == EVENT:
            # The time of an event is earlier than the time at which this program reads the event.
            yield event(file, names, events, time.time_ns() + 10**9)
        else:
            file.wrong("no record of type %#x", kind)


def main():
    paths = [argument for argument in sys.argv[1:] if argument != "--counts"]
    counting = len(paths) != len(sys.argv) - 1
    if len(paths) != 2:
        sys.exit(__doc__)
    try:
        with open(paths[0], encoding="utf-8") as file:
            events = declarations(file.read())
    except (OSError, ValueError, Wrong) as why:
        print("%s: %s" % (paths[0], why), file=sys.stderr)
        return 2
    counts = {"dropped": 0, "events": {}}
    try:
        for record in records(paths[1], events):
            if not counting:
                print(json.dumps(record))
            elif "event" in record:
                name = record["event"]
                counts["events"][name] = counts["events"].get(name, 0) + 1
            else:
                counts["dropped"] += record.get("dropped", 0)
    except (OSError, Wrong) as why:
        print("%s: %s" % (paths[1], why), file=sys.stderr)
        return 1
    if counting:
        print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
