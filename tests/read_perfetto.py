"""Compares a trace of Perfetto with the output of the command for the same session, number by number.

Arguments: `--show` and the trace, whose packets are printed; or the trace, and files with the output of `report --json`, `regions --samples` and `regions --intervals`.
Prints the number of each kind of what was compared. Perfetto's package only decodes the trace: no query runs.
"""

import bisect
import collections
import csv
import itertools
import json
import sys

from google.protobuf import json_format
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

EVENT = protos.TrackEvent
# The kernel writes a switch into two buffers, one after the other, each with its own time.
SAME_SWITCH = 1_000_000

class Sequence:
    """What the packets of a sequence need of those before."""

    def __init__(self):
        self.texts, self.clock, self.track, self.now, self.is_valid = {}, None, 0, None, False

    def read(self, packet):
        if packet.HasField("clock_snapshot"):
            for clock in packet.clock_snapshot.clocks:
                if clock.is_incremental:
                    self.now = clock.timestamp
        if packet.sequence_flags & 1:
            self.texts, self.is_valid = {}, True
            self.clock = packet.trace_packet_defaults.timestamp_clock_id
            self.track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        assert not packet.sequence_flags & 2 or self.is_valid, "a packet before its defaults"
        data = packet.interned_data
        for kind, entries in (("event", data.event_names), ("argument", data.debug_annotation_names)):
            for entry in entries:
                assert self.texts.setdefault((kind, entry.iid), entry.name) == entry.name
        for entry in data.debug_annotation_string_values:
            self.texts["value", entry.iid] = entry.str.decode()

    def time(self, packet):
        clock = packet.timestamp_clock_id or self.clock
        if clock != 64:
            return packet.timestamp
        self.now += packet.timestamp
        return self.now

    def value(self, argument):
        if argument.array_values:
            return [self.value(entry) for entry in argument.array_values]
        if argument.dict_entries:
            return self.entries(argument.dict_entries)
        if argument.HasField("string_value_iid"):
            return self.texts["value", argument.string_value_iid]
        kind = argument.WhichOneof("value")
        return getattr(argument, kind) if kind else []

    def entries(self, arguments):
        entries = {self.texts["argument", a.name_iid]: self.value(a) for a in arguments}
        assert len(entries) == len(arguments) and not any("." in name for name in entries), entries
        return entries

    def arguments(self, event):
        """Returns the arguments by their names, whose nested parts are joined by dots."""
        return dict(flat(self.entries(event.debug_annotations)))


def flat(entries, prefix=""):
    for name, value in entries.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class Trace:
    """A decoded trace: events of tracks in the order of the file, at Unix times."""

    def __init__(self, path):
        trace = protos.Trace()
        with open(path, "rb") as file:
            trace.ParseFromString(file.read())
        self.tracks, self.events = {}, []
        # (machine, CPU): (time, state before, next thread, priority, name); the same with (thread, CPU, ..) of wake-ups.
        self.switches, self.wakings = collections.defaultdict(list), collections.defaultdict(list)
        # (machine, thread): (time, state, CPU, name)
        self.tasks = collections.defaultdict(list)
        sequences = collections.defaultdict(Sequence)
        first = self.check_first(trace.packet)
        clocks = {clock.clock_id: clock.timestamp for clock in first.clock_snapshot.clocks}
        self.clock = first.clock_snapshot.primary_trace_clock
        offset = clocks[1] - clocks[self.clock]
        for packet in trace.packet:
            sequence = sequences[packet.trusted_packet_sequence_id]
            sequence.read(packet)
            if packet.HasField("track_descriptor"):
                of = packet.track_descriptor
                known = self.tracks.setdefault(of.uuid, (packet.machine_id, of))
                assert known[0] == packet.machine_id
                assert not of.parent_uuid or self.tracks[of.parent_uuid][0] == packet.machine_id
            if packet.HasField("track_event"):
                event = packet.track_event
                event.track_uuid = event.track_uuid or sequence.track
                machine, _ = self.tracks[event.track_uuid]
                assert machine == packet.machine_id, "an event on another machine's track"
                name = sequence.texts["event", event.name_iid] if event.name_iid else None
                assert name is None or event.type != EVENT.TYPE_SLICE_END, "viewers end a slice of that name alone"
                assert not event.correlation_id, "viewers give each number another colour"
                at = sequence.time(packet) + offset
                self.events.append((at, event, name, sequence.arguments(event)))
            if packet.HasField("generic_kernel_task_state_event"):
                task = packet.generic_kernel_task_state_event
                at = sequence.time(packet) + offset
                self.tasks[packet.machine_id, task.tid].append((at, task.state, task.cpu, task.comm))
            if packet.HasField("ftrace_events"):
                assert self.clock == 6, "the kernel's own form has times of BOOTTIME"
                self.read_bundle(packet.machine_id, packet.ftrace_events, offset)
        self.machines = {packet.machine_id for packet in trace.packet}

    def check_first(self, packets):
        """Checks the order of the first packets: all machines, the snapshots of guests' sequences, those of the host's.
        Returns the host's snapshot."""
        machines = [packet.machine_id for packet in itertools.takewhile(lambda p: p.HasField("system_info"), packets)]
        assert machines == list(range(len(machines))), machines
        begin = len(machines)
        snapshots = list(itertools.takewhile(lambda p: p.HasField("clock_snapshot"), packets[begin:]))
        assert [p.machine_id for p in snapshots] == [m for m in [*machines[1:], 0] for _ in range(2)], snapshots
        assert len({p.trusted_packet_sequence_id for p in snapshots}) == len(snapshots)
        rest = packets[begin + len(snapshots):]
        assert not any(p.HasField("system_info") or p.HasField("clock_snapshot") for p in rest)
        return snapshots[-1]

    def read_bundle(self, machine, bundle, offset):
        compact = bundle.compact_sched
        times = [at + offset for at in itertools.accumulate(compact.switch_timestamp)]
        names = [compact.intern_table[at] for at in compact.switch_next_comm_index]
        fields = (times, compact.switch_prev_state, compact.switch_next_pid, compact.switch_next_prio, names)
        assert len({len(field) for field in fields}) == 1
        self.switches[machine, bundle.cpu] += zip(*fields)
        times = [at + offset for at in itertools.accumulate(compact.waking_timestamp)]
        names = [compact.intern_table[at] for at in compact.waking_comm_index]
        fields = (times, compact.waking_pid, compact.waking_target_cpu, compact.waking_prio, names, compact.waking_common_flags)
        assert len({len(field) for field in fields}) == 1
        self.wakings[machine, bundle.cpu] += zip(*fields)

    def thread(self, uuid):
        """Returns the descriptor of the thread that a track is of or belongs to."""
        while uuid:
            _, of = self.tracks[uuid]
            if of.HasField("thread"):
                return of.thread
            uuid = of.parent_uuid
        return None

    def is_part(self, uuid, name):
        _, of = self.tracks[uuid]
        return bool(of.parent_uuid) and of.name == name


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def same(value, shown):
    """Returns whether a value is the one that JSON shows: large numbers are strings there."""
    if isinstance(value, list):
        return len(value) == len(shown) and all(map(same, value, shown))
    if isinstance(value, bool) or isinstance(shown, bool) or isinstance(value, float):
        return shown is None or value == shown
    if isinstance(value, int):
        return value == int(shown)
    return value == shown or "\ufffd" in value


def compare_events(trace, rows):
    """Compares events, functions and losses with those of the report, in its order."""
    own = [
        (at, event, name, arguments)
        for at, event, name, arguments in trace.events
        if event.type in (EVENT.TYPE_INSTANT, EVENT.TYPE_SLICE_BEGIN, EVENT.TYPE_SLICE_END)
        and (event.type == EVENT.TYPE_INSTANT or is_of_events(trace, event, name))
    ]
    counts = collections.Counter()
    own = iter(own)
    for row in rows:
        at, event, name, arguments = next(own)
        if row.get("type") == "lost":
            assert event.type == EVENT.TYPE_SLICE_BEGIN and arguments["lost"] == int(row["events"]), row
            assert row["ts_ns"] is None or at == int(row["ts_ns"]), row
            end = next(own)
            assert end[1].type == EVENT.TYPE_SLICE_END and end[0] == at, row
            counts["lost"] += arguments["lost"]
            continue
        assert at == int(row["ts_ns"]), (at, row)
        if is_of_function(trace, event):
            assert row["event"] in ("function_entry", "function_exit"), row
            assert (event.type == EVENT.TYPE_SLICE_BEGIN) == (row["event"] == "function_entry"), row
            names = {row["fields"].get("name"), row["fields"].get("symbol"), f"{int(row['fields']['address']):#x}"}
            assert event.type == EVENT.TYPE_SLICE_END or name in names, (name, row)
            counts["functions"] += event.type != EVENT.TYPE_INSTANT
        else:
            assert name == row["event"], (name, row)
            if event.flow_ids:
                end = next(own)
                assert end[1].type == EVENT.TYPE_SLICE_END and end[0] == at, row
        fields = dict(row["fields"])
        for name, value in (row.get("reference") or {}).items():
            fields["reference." + name] = value
        if "reference" in row and row["bound_ns"] is not None:
            fields["reference.bound_ns"] = row["bound_ns"]
        for name, shown in fields.items():
            if name in arguments:
                assert same(arguments[name], shown), (name, arguments[name], row)
            else:
                assert is_of_function(trace, event), (name, row)
        assert set(arguments) <= set(fields), (arguments, row)
        check_track(trace, event.track_uuid, row)
        counts["events"] += 1
    assert next(own, None) is None, "more events than in the report"
    return counts


def is_of_function(trace, event):
    return trace.is_part(event.track_uuid, "functions")


def is_of_events(trace, event, name):
    """Returns whether a slice is of a function, a loss, or an event with a flow."""
    if is_of_function(trace, event):
        return True
    if event.type == EVENT.TYPE_SLICE_BEGIN:
        is_loss = name and name.startswith("events lost")
        if is_loss or is_guests_side(trace, event):
            trace.ending = event.track_uuid
            return True
    elif getattr(trace, "ending", None) == event.track_uuid:
        trace.ending = None
        return True
    return False


def is_guests_side(trace, event):
    """Returns whether an event is a reference point on its guest's track."""
    return bool(event.flow_ids) and trace.tracks[event.track_uuid][0] > 0


def check_flows(trace):
    """Checks that each flow is from a guest's point to the thread that served it, and from the exit in which it did.
    Returns the number of flows from exits."""
    ends, count = collections.defaultdict(list), 0
    for at, event, name, _ in trace.events:
        for flow in event.flow_ids:
            assert event.type == EVENT.TYPE_SLICE_BEGIN, "an instant has no flow"
            ends[flow].append((at, event, name))
    for flow, of in ends.items():
        exits = [end for end in of if trace.is_part(end[1].track_uuid, "exits")]
        guests = [end for end in of if is_guests_side(trace, end[1])]
        points = [end for end in of if end not in exits and end not in guests]
        assert (len(guests), len(points), len(exits) <= 1) == (1, 1, True), (flow, of)
        assert guests[0][0] == points[0][0] and guests[0][2] == points[0][2], (flow, of)
        for exit in exits:
            tids = {trace.thread(end[1].track_uuid).tid for end in (exit, points[0])}
            assert exit[0] <= points[0][0] and len(tids) == 1, (flow, of)
        count += len(exits)
    return count


def compare_points(trace, rows):
    """Compares the points on the threads that served them with the guest's side."""
    served = collections.Counter()
    for at, event, name, _ in trace.events:
        if event.flow_ids and not is_guests_side(trace, event) and not trace.is_part(event.track_uuid, "exits"):
            assert not trace.tracks[event.track_uuid][0], "a point is served by the host"
            served[at, name, trace.thread(event.track_uuid).tid, event.flow_ids[0] & 0xFFFFFFFF] += 1
    wanted = collections.Counter()
    for row in rows:
        if row.get("reference") and row["tid"] is not None and row["source"].startswith("guest/"):
            wanted[int(row["ts_ns"]), row["event"], int(row["tid"]), int(row["reference"]["seq"])] += 1
    assert served == wanted, (list((served - wanted).items())[:3], list((wanted - served).items())[:3])
    return sum(served.values())


def check_track(trace, uuid, row):
    """Checks that an event is on the track of its thread."""
    thread = trace.thread(uuid)
    if thread is None or row["tid"] is None or row["client"] is not None:
        return
    assert thread.tid == int(row["tid"]), (thread, row)
    assert row["pid"] is None or thread.pid == int(row["pid"]), (thread, row)


def check_nesting(trace):
    """Checks that each slice ends within the one around it. Returns the slices of each track, the inner ones first."""
    open_slices, slices = collections.defaultdict(list), collections.defaultdict(list)
    # As viewers do: in order of time, and of the file.
    for at, event, name, arguments in sorted(trace.events, key=lambda entry: entry[0]):
        stack = open_slices[event.track_uuid]
        if event.type == EVENT.TYPE_SLICE_BEGIN:
            stack.append((at, name, arguments))
        elif event.type == EVENT.TYPE_SLICE_END:
            begin, name, arguments = stack.pop()
            slices[event.track_uuid].append((begin, at, name, arguments))
    left = {uuid for uuid, stack in open_slices.items() if stack}
    assert all(trace.is_part(uuid, "functions") for uuid in left), "a slice without an end"
    return slices


def check_tracks(trace):
    """Checks that each track is below another one, at its place, unless it is a group or of a process or thread."""
    is_root = lambda of: of.HasField("process") or of.HasField("thread") or not of.parent_uuid
    names = collections.defaultdict(set)
    for machine, of in trace.tracks.values():
        if of.HasField("process"):
            continue
        if not is_root(of):
            parent = trace.tracks[of.parent_uuid][1]
            assert of.HasField("sibling_order_rank") and parent.child_ordering == parent.EXPLICIT, (of, parent)
        elif not of.HasField("thread"):
            names[machine].add(of.uuid)
    assert all(len(of) == 1 for of in names.values()), "a machine has one group"
    processes = {(machine, of.process.pid) for machine, of in trace.tracks.values() if of.HasField("process")}
    threads = {(machine, of.thread.pid) for machine, of in trace.tracks.values() if of.HasField("thread")}
    assert threads <= processes, threads - processes


def compare_begins(slices, rows):
    """Compares the fields of regions with those of the events that begin them. Of regions that begin and end together, the
    inner one has begun later. Returns the number of regions in another one."""
    begins = collections.defaultdict(list)
    for number, row in enumerate(rows):
        if row.get("event", "").endswith("_begin") and "id" in row["fields"]:
            fields = {name: value for name, value in row["fields"].items() if name not in ("id", "any_client")}
            begins[int(row["ts_ns"]), row["event"], int(row["fields"]["id"])].append((number, fields))
    nested = 0
    for of in slices.values():
        last = None
        for begin, end, name, arguments in of:
            if "id" not in arguments or "lost" in arguments:
                continue
            own = {name.removeprefix("field."): value for name, value in arguments.items() if name.startswith("field.")}
            wanted = begins[begin, name + "_begin", arguments["id"]]
            is_same = lambda fields: fields.keys() == own.keys() and all(same(own[name], fields[name]) for name in own)
            numbers = [number for number, fields in wanted if is_same(fields)]
            assert numbers, (begin, name, arguments, wanted)
            if last and last[:2] == (begin, end):
                assert last[2] > numbers[0], (begin, name, arguments)
            nested += bool(last) and begin <= last[0] and last[1] <= end
            last = (begin, end, numbers[0])
    return nested


def is_part(key):
    """Returns whether a column of samples, or an argument of a slice, is a part of a region's time."""
    return key.endswith("_ns") and "." not in key and key not in ("t_ns", "begin_ns", "duration_ns", "bound_ns")


def compare_regions(trace, slices, path):
    """Compares regions with their samples."""
    with open(path, encoding="utf-8", newline="") as file:
        samples = list(csv.DictReader(file))
    wanted = collections.Counter()
    for sample in samples:
        begin, duration = int(sample["begin_ns"]), int(sample["duration_ns"])
        parts = frozenset((key, int(sample[key])) for key in sample if is_part(key) and sample[key] != "0")
        wanted[begin, begin + duration, sample["name"], sample["id"], parts] += 1
    own = collections.Counter()
    for uuid, of in slices.items():
        for begin, end, name, arguments in of:
            if "id" in arguments and "lost" not in arguments:
                parts = frozenset((key, value) for key, value in arguments.items() if is_part(key))
                own[begin, end, name, str(arguments["id"]), parts] += 1
                assert sum(value for _, value in parts) == end - begin, (name, begin, end, arguments)
    assert own == wanted, (list((own - wanted).items())[:3], list((wanted - own).items())[:3])
    return len(samples)


# Labels of parts, where they are not the keys of the intervals.
LABELS = {
    "on_cpu": "on-CPU", "host_interrupt": "host interrupt", "vmm": "VMM", "stolen": "stolen by the host",
    "behind": "behind guest threads", "runnable": "waiting for a CPU", "halted": "vCPU halted", "off_cpu": "off-CPU",
}


def compare_states(trace, slices, path):
    """Compares the parts of each thread with its intervals."""
    wanted = collections.defaultdict(list)
    for row in lines(path):
        begin = int(row["begin_ns"])
        part = LABELS.get(row["part"], row["part"])
        wanted[int(row["tid"])].append((begin, begin + int(row["duration_ns"]), part, row["reason"]))
    own, last, count = collections.defaultdict(list), {}, 0
    for at, event, name, arguments in trace.events:
        if event.type != EVENT.TYPE_STATE:
            continue
        _, of = trace.tracks[event.track_uuid]
        assert of.HasField("state") and of.parent_uuid
        if event.track_uuid in last:
            begin, name_of, reason = last.pop(event.track_uuid)
            assert name != name_of, "viewers take a state of the same name for the same state"
            own[event.track_uuid].append((begin, at, name_of, reason))
        if name is not None:
            last[event.track_uuid] = (at, name, arguments.get("reason"))
    for uuid, of in slices.items():
        if trace.is_part(uuid, "parts"):
            own[uuid] = [(begin, end, name, arguments.get("reason")) for begin, end, name, arguments in of]
    assert not last, "a state without an end"
    if not own and all(part == "unknown" for of in wanted.values() for _, _, part, _ in of):
        # Without a kernel's trace and regions there is nothing to say.
        return 0
    by_tid = {}
    for uuid, intervals in own.items():
        thread = trace.thread(uuid)
        tid = thread.tid if thread else int(trace.tracks[trace.tracks[uuid][1].parent_uuid][1].name.split()[-1].split("-")[-1])
        by_tid[tid] = intervals
    assert by_tid.keys() == wanted.keys(), (by_tid.keys(), wanted.keys())
    for tid, intervals in wanted.items():
        assert by_tid[tid] == intervals, (tid, [pair for pair in zip(by_tid[tid], intervals) if pair[0] != pair[1]][:2])
        count += len(intervals)
    return count


def compare_scheduling(trace, rows, is_whole):
    """Compares switches with those of the report: it has all of them, or those of the threads that were recorded. After
    the last one, a CPU gets the idle thread."""
    tasks = {of: all_of for of, all_of in trace.tasks.items() if of[1] != 0}
    counts = collections.Counter(switches=0)
    by_task = collections.defaultdict(list)
    for (_, cpu), all_of in trace.switches.items():
        for at, _, task, _, _ in all_of:
            by_task[cpu, task].append(at)
    states = {(of[1], at, state): cpu for of, all_of in tasks.items() for at, state, cpu, _ in all_of}
    for (_, tid), all_of in tasks.items():
        for before, after in zip(all_of, all_of[1:]):
            assert before[0] <= after[0], (tid, before, after)
            assert (before[1], after[1]) != (3, 3), (tid, before, after)
    for all_of in trace.switches.values():
        assert all(a[0] <= b[0] for a, b in zip(all_of, all_of[1:])), "switches are not in order"
        assert all_of[-1][2] == 0, "a thread runs after the recording"
        counts["switches"] += len(all_of)
    counts["wakings"] = sum(map(len, trace.wakings.values()))
    counts["task_states"] = sum(map(len, tasks.values()))
    of_report = 0
    for row in rows:
        if row.get("event") != "sched:sched_switch":
            continue
        of_report += 1
        at, fields, cpu = int(row["ts_ns"]), row["fields"], int(row["cpu"])
        of_task = by_task[cpu, fields["next_pid"]]
        first, last = bisect.bisect_left(of_task, at - SAME_SWITCH), bisect.bisect_right(of_task, at + SAME_SWITCH)
        near = of_task[first:last]
        assert at in near or not is_whole or not trace.switches, (row, near)
        # As a state of one of both threads, if only some were recorded.
        of_prev = [state for state in range(2, 9) if (fields["prev_pid"], at, state) in states]
        assert near or of_prev or (fields["next_pid"], at, 3) in states, row
    # With an end of each CPU that did not become idle by itself.
    ends = range(counts["switches"] - len(trace.switches), counts["switches"] + 1)
    assert not is_whole or not trace.switches or of_report in ends, (counts, of_report)
    return counts


def show(path):
    """Prints the packets, a line each, with the names and arguments of their events."""
    trace, sequences = protos.Trace(), collections.defaultdict(Sequence)
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    for packet in trace.packet:
        sequence = sequences[packet.trusted_packet_sequence_id]
        sequence.read(packet)
        shown = json_format.MessageToDict(packet, preserving_proto_field_name=True)
        if packet.HasField("track_event"):
            event = packet.track_event
            shown["name"] = sequence.texts.get(("event", event.name_iid))
            shown["track"] = event.track_uuid or sequence.track
            shown["at"] = sequence.time(packet)
            shown["arguments"] = sequence.entries(event.debug_annotations)
        print(json.dumps(shown))


def main():
    if sys.argv[1] == "--show":
        return show(sys.argv[2])
    trace = Trace(sys.argv[1])
    rows = lines(sys.argv[2])
    counts = compare_events(trace, rows)
    counts.update(compare_scheduling(trace, rows, "--all-threads" in sys.argv))
    counts["points"] = compare_points(trace, rows)
    counts["flows"] = check_flows(trace)
    slices = check_nesting(trace)
    check_tracks(trace)
    counts["regions"] = compare_regions(trace, slices, sys.argv[3])
    counts["nested"] = compare_begins(slices, rows)
    counts["states"] = compare_states(trace, slices, sys.argv[4])
    states = {event.track_uuid for _, event, _, _ in trace.events if event.type == EVENT.TYPE_STATE}
    counts["guest_threads"] = sum(trace.tracks[uuid][0] != 0 for uuid in states)
    counts["machines"] = len(trace.machines)
    print(json.dumps(counts))


main()
