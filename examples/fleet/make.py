"""Makes a fleet for trials: copies of recorded samples, with hosts, builds and session_uuids that are made up.

Each session has regions that are drawn, again and again, from those of one of the files. Nothing else is changed.
"""

import argparse
import gzip
import pathlib
import random
import uuid


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", nargs="+", type=pathlib.Path, help="files of `hypertrace regions --samples`")
    parser.add_argument("-o", "--out", required=True, type=pathlib.Path, help="folder to make")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--regions", type=int, default=10_000, help="of each session")
    parser.add_argument("--hosts", type=int, default=5)
    parser.add_argument("--builds", type=int, default=2)
    parser.add_argument("--gzip", action="store_true")
    args = parser.parse_args()
    args.out.mkdir()
    sources = [path.read_text().splitlines() for path in args.samples]
    chance = random.Random(1)
    for number in range(args.sessions):
        header, *rows = sources[number % len(sources)]
        identity = uuid.UUID(int=chance.getrandbits(128), version=4)
        drawn = (row[: row.rindex(",") + 1] for row in chance.choices(rows, k=args.regions))
        text = header + "\n" + "".join(f"{row}{identity}\n" for row in drawn)
        host, build = number % args.hosts, number // args.hosts % args.builds
        folder = args.out / "csv" / f"host=made-up-{host}" / f"build=made-up-{build}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"copy-{number}.csv"
        if args.gzip:
            path.with_suffix(".csv.gz").write_bytes(gzip.compress(text.encode(), 6))
        else:
            path.write_text(text)


if __name__ == "__main__":
    main()
