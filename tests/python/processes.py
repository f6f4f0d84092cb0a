"""Regions of the processes of multiprocessing, started in the way that the argument names."""

import multiprocessing
import sys

import hypertrace


def work(n):
    for _ in range(100):
        with hypertrace.region("child_work", n=n):
            pass
    # A region that another process ends.
    hypertrace.event("handed_over_begin", id=n, any_client=True)
    return n


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with hypertrace.region("parent"), context.Pool(3) as pool:
        for n in pool.map(work, range(6)):
            hypertrace.event("handed_over_end", id=n, any_client=True)
