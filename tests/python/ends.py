"""Ends of a program, and events in odd moments. An argument chooses the part."""

import atexit
import os
import signal
import sys

import hypertrace


class Last:
    def __del__(self):
        hypertrace.event("in_del")
        with hypertrace.region("region_in_del"):
            pass


def shutdown():
    """Events of the interpreter's end: of atexit, and of an object that only a module holds."""
    atexit.register(lambda: hypertrace.event("in_atexit"))
    globals()["kept"] = Last()


def in_handlers():
    """Events of a signal handler that interrupts events."""

    def handler(number, frame):
        with hypertrace.region("in_handler"):
            hypertrace.event("handled", number=number)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    for n in range(20_000):
        with hypertrace.region("interrupted", n=n):
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)


def killed():
    """Ends by SIGKILL, in a region."""
    for n in range(1000):
        with hypertrace.region("before", n=n):
            pass
    with hypertrace.region("killed"):
        os.kill(os.getpid(), signal.SIGKILL)


def forked():
    """A region around a fork ends in both processes: in the child, it is of no begin."""
    with hypertrace.region("around_fork"):
        child = os.fork()
        with hypertrace.region("after_fork"):
            pass
    if child:
        os.waitpid(child, 0)


def threads():
    print(len(os.listdir("/proc/self/task")), hypertrace.why_off[:24])


parts = {"shutdown": shutdown, "in_handlers": in_handlers, "killed": killed, "forked": forked, "threads": threads}
parts[sys.argv[1]]()
