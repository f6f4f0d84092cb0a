"""Events and regions of a Python program, on the timeline of ``hypertrace record``.

::

    with hypertrace.region("load", rows=n):
        ...
    hypertrace.event("loaded", path=path, seconds=0.25)

Without a recorder, or without libhypertrace.so, all of this does nothing, and ``hypertrace.why_off`` is a sentence
that says why. Else that is empty.
"""

from ._events import event, region, why_off
from ._logging import LogHandler

__all__ = ["LogHandler", "event", "region", "why_off"]
