#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Records runs of examples/requests.rs, half of them with a `parse` that does 5 % more, and writes a row for each: the
typical means of a run and their parts, in nanoseconds. As root:

    cargo build --release -p hypertrace-compare --example requests
    timeline/compare/tests/record.py HYPERTRACE target/release/examples/requests RUNS > timeline/compare/tests/runs.csv
"""

import csv
import io
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

CHILDREN = ["parse", "look_up", "render"]
PARTS = ["on_cpu", "kernel", "runnable", "blocked", "unknown"]


def typical(regions):
    """Returns the regions between the 5th and the 75th percentile of duration, by nearest rank, both inclusive."""
    durations = sorted(region["duration_ns"] for region in regions)
    low = durations[-(-len(durations) * 5 // 100) - 1]
    high = durations[-(-len(durations) * 75 // 100) - 1]
    return [region for region in regions if low <= region["duration_ns"] <= high]


def mean(regions, column):
    return f"{sum(region[column] for region in regions) / len(regions):.1f}"


def reduced(samples):
    regions = {name: [] for name in ["request", *CHILDREN]}
    for row in csv.DictReader(io.StringIO(samples)):
        name = row["name"]
        regions[name].append({key: int(value) for key, value in row.items() if key.endswith("_ns")})
    requests = sorted(regions["request"], key=lambda region: region["begin_ns"])
    for name in CHILDREN:
        # Sorted by time, the n-th child belongs to the n-th request, because one thread makes all regions.
        children = sorted(regions[name], key=lambda region: region["begin_ns"])
        assert len(children) == len(requests)
        for request, child in zip(requests, children):
            assert 0 <= child["begin_ns"] - request["begin_ns"] < request["duration_ns"]
            request[name] = child["duration_ns"]
    for request in requests:
        request["own"] = request["duration_ns"] - sum(request[name] for name in CHILDREN)
    chosen = typical(requests)
    row = [mean(chosen, "duration_ns")]
    row += [mean(chosen, f"{part}_ns") for part in PARTS]
    row += [mean(chosen, name) for name in [*CHILDREN, "own"]]
    return row + [mean(typical(regions[name]), "duration_ns") for name in CHILDREN]


def cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def load():
    return float(pathlib.Path("/proc/loadavg").read_text().split()[0])


hypertrace, program, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows, loads, begin = [], [], time.strftime("%Y-%m-%d %H:%M", time.gmtime())
with tempfile.TemporaryDirectory() as folder:
    for number in range(-2, runs):
        session = f"{folder}/{number}"
        # Both builds are recorded in the order A B B A, after one warm-up run of each build.
        parse = [100, 105, 105, 100][number % 4]
        record = [hypertrace, "record", "--kernel", "-o", session, program, "500", str(parse)]
        loads.append(load())
        subprocess.run(record, check=True, capture_output=True)
        samples = subprocess.run([hypertrace, "regions", session, "--samples"], check=True, capture_output=True)
        subprocess.run(["rm", "-r", session], check=True)
        if number >= 0:
            rows.append([parse, *reduced(samples.stdout.decode())])
            print(number, loads[-1], *rows[-1], file=sys.stderr, flush=True)
end = time.strftime("%H:%M UTC", time.gmtime())
print(f"# {begin} to {end}: {cpu()}, {platform.release()}, load {min(loads)} to {max(loads)}.")
print("# Nanoseconds. Written by record.py.")
names = ["parse_percent", "request", *PARTS, *CHILDREN, "own"]
print(",".join(names + [f"{name}_alone" for name in CHILDREN]))
for row in rows:
    print(",".join(map(str, row)))
