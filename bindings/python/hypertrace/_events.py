"""Events and regions: what a program calls.

An event is one call of C with two addresses: that of a call site, which `_sites` makes at the first event of a name
with these fields and types, and that of the values. The dictionaries here find a call site by one look-up.
"""

import contextvars
import ctypes
import functools
import inspect
import itertools
import os
import sys
import threading
import weakref

from . import _sites
from ._library import open_library

_library, why_off = open_library()

# By (name, names of fields.., types of values..), for regions with `any_client`, or `_TASK` and the module, after the
# name.
_EVENTS = {}
_REGIONS = {}
_TASK = _sites.TASK


def _event(name: str, /, **fields: object) -> None:
    """Records an event with these fields.

    A value is an ``int``, ``float``, ``bool``, ``str`` or ``bytes``, or is recorded as ``str(value)``. An event has at most
    16 fields. It never waits and never raises; an event for which the ring has no room is counted as lost.
    """
    values = fields.values()
    try:
        site, pack, slot = _EVENTS[(name, *fields, *map(type, values))]
    except (KeyError, TypeError):
        site, pack, slot = _sites.of_event(_EVENTS, name, fields)
    if not _off[slot]:
        try:
            packed = pack(*values)
        except Exception:
            fields = _sites.narrowed(fields)
            site, pack, _ = _sites.of_event(_EVENTS, name, fields)
            packed = pack(*fields.values())
        _emit(site, packed)


class _Region:
    """A region of interest: ``with hypertrace.region("load", rows=n):``, or a decorator of a function.

    The region is the events ``NAME_begin(id, FIELDS)`` and ``NAME_end(id)``, with at most 15 fields. It ends with the block
    or the function. An exception ends it too, and passes. The id is unique among the recorded processes, unless
    ``id=NUMBER`` sets it. A region that ends on another thread than it began needs ``any_client=True``.

    A decorated coroutine or generator is one region from its start to its end. While an event loop of asyncio runs, a
    region has the fields ``parent``, the id of the region around it in the same task, and ``target``, its module.
    """

    __slots__ = ("_any_client", "_end", "_fields", "_given", "_id", "_module", "_name", "_plain", "_step", "_token")

    def __init__(self, name: str, /, *, id: "int | None" = None, any_client: bool = False, **fields: object) -> None:
        self._name = name
        self._given = id if id is None else _sites.number(id)
        self._any_client = any_client
        self._fields = fields
        self._module = self._token = None

    def __enter__(self) -> "_Region":
        events = _modules.get("asyncio.events")
        loop = None if events is None else events._get_running_loop()
        fields = self._fields
        if loop is not None and self._given is None and not self._any_client:
            # A field of the program's own has one of these names: readers could not tell it from the region's.
            if len(fields) <= _sites.MAX_OF_TASK and "parent" not in fields and "target" not in fields:
                return self._enter_task(loop)
        values = fields.values()
        try:
            begin, pack, slot, self._end = _REGIONS[(self._name, self._any_client, *fields, *map(type, values))]
        except (KeyError, TypeError):
            begin, pack, slot, self._end = _sites.of_region(_REGIONS, self._name, self._any_client, fields)
        given = self._given
        self._id = number = _next_id() if given is None else given
        if not _off[slot]:
            try:
                packed = pack(number, *values)
            except Exception:
                fields = _sites.narrowed(fields)
                begin, pack, *_ = _sites.of_region(_REGIONS, self._name, self._any_client, fields)
                packed = pack(number, *fields.values())
            _emit(begin, packed)
        return self

    def _enter_task(self, loop) -> "_Region":
        """Begins a region of a task. If the task awaits in it, it is no region of the thread alone: others run then."""
        # The caller of `__enter__` has the block. A caller in C has no frame.
        block = sys._getframe(1).f_back
        module = self._module or ("" if block is None else block.f_globals.get("__name__", ""))
        fields = self._fields
        values = fields.values()
        try:
            found = _REGIONS[(self._name, _TASK, module, *fields, *map(type, values))]
        except (KeyError, TypeError):
            found = _sites.of_task(_REGIONS, self._name, module, fields)
        begin, pack, slot, self._end, self._plain = found
        self._step = _step_of(loop)
        self._id = number = _next_id()
        parent = _current.get()
        self._token = _current.set(number)
        if not _off[slot]:
            try:
                packed = pack(number, parent, *values)
            except Exception:
                fields = _sites.narrowed(fields)
                begin, pack, *_ = _sites.of_task(_REGIONS, self._name, module, fields)
                packed = pack(number, parent, *fields.values())
            _emit(begin, packed)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        token = self._token
        if token is not None:
            self._token = None
            try:
                _current.reset(token)
            except ValueError:
                # The block ends in another context, as that of a generator can.
                pass
            if _thread.step == self._step:
                self._end = self._plain
        end, pack, slot = self._end
        if not _off[slot]:
            _emit(end, pack(self._id))

    def __call__(self, function):
        _check(function)
        options = {"id": self._given, "any_client": self._any_client, **self._fields}
        module = getattr(function, "__module__", None)

        def new():
            region = _Region(self._name, **options)
            region._module = module
            return region

        if inspect.iscoroutinefunction(function):

            async def traced(*args, **kwargs):
                with new():
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            def traced(*args, **kwargs):
                with new():
                    return (yield from function(*args, **kwargs))

        else:

            def traced(*args, **kwargs):
                with new():
                    return function(*args, **kwargs)

        return functools.wraps(function)(traced)


# Id of the region around the code that runs in this task, 0 without one.
_current = contextvars.ContextVar("hypertrace_region", default=0)
_modules = sys.modules


class _Thread(threading.local):
    """What a thread's event loop does: the number of its step, and whether `_end_step` is in the loop's queue."""

    loop = None
    step = 0
    is_ending = False


_thread = _Thread()
_next_step = itertools.count(1).__next__


def _step_of(loop) -> int:
    """Returns the number of the loop's step. While a task does not await, the number stays, as the loop runs nothing."""
    thread = _thread
    if thread.loop is None or thread.loop() is not loop:
        thread.loop, thread.step, thread.is_ending = weakref.ref(loop), _next_step(), False
    if not thread.is_ending:
        thread.is_ending = True
        loop.call_soon(_end_step)
    return thread.step


def _end_step() -> None:
    _thread.step, _thread.is_ending = _next_step(), False


class _Nothing:
    """What `region` gives while nothing is recorded."""

    __slots__ = ()

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass

    def __call__(self, function):
        _check(function)
        return function


def _check(function) -> None:
    if inspect.isasyncgenfunction(function):
        raise TypeError("hypertrace.region decorates no asynchronous generator: use `with` inside it")


def _no_event(name: str, /, **fields: object) -> None:
    pass


_NOTHING = _Nothing()


def _no_region(name: str, /, *, id: "int | None" = None, any_client: bool = False, **fields: object) -> _Nothing:
    return _NOTHING


def _count() -> None:
    """Begins to count ids: those of this process, which readers of JSON can still hold as doubles."""
    global _next_id
    _next_id = itertools.count((os.getpid() << 31) + 1).__next__


if _library is None:
    event, region = _no_event, _no_region
    event.__doc__, region.__doc__ = _event.__doc__, _Region.__doc__
else:
    event, region = _event, _Region
    _emit = _library.hypertrace_event
    _emit.restype = None
    _off = memoryview((ctypes.c_uint8 * 4096).in_dll(_library, "hypertrace_off_")).cast("B")
    _count()
    os.register_at_fork(after_in_child=_count)
event.__name__ = event.__qualname__ = "event"
region.__name__ = region.__qualname__ = "region"
