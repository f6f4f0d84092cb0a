"""Call sites: an event's name, fields and types, as the macros of hypertrace.h make them, and how values are packed."""

import ctypes
import numbers
import operator
import re
import struct
import warnings

from ._library import Site

# Limits of an event.
_MAX_FIELDS = 16
# Fields of a region of a task beside `id`, `parent` and `target`.
MAX_OF_TASK = _MAX_FIELDS - 3
_MAX_NAME = 64
_MAX_STR = 1024
# Maximum number of call sites of a kind that are kept. If a program invents names without end, its call sites
# are made anew.
_MAX_SITES = 4096


class _U64(int):
    """A value from 2**63 to 2**64 - 1."""


# Stands in the key of a region of a task.
TASK = "task"

# A kind of values is a format character of the module `struct`, or P for strings, or p for a string that stays at
# its address. The numbers are the types of C: HYPERTRACE_TYPE_I64, U64, F64, BOOL, STR. A bool takes a word, too.
_TYPES = {"q": 7, "Q": 3, "d": 8, "?": 9, "P": 11, "p": 11}
_WORDS = {"q": ctypes.c_int64, "Q": ctypes.c_uint64, "d": ctypes.c_double, "?": ctypes.c_uint64, "P": ctypes.c_char_p}
_WORDS["p"] = ctypes.c_uint64
_EXACT = {int: "q", _U64: "Q", float: "d", bool: "?"}


def _text(value):
    """Returns a value's text as C has it. What that cannot have is shown as Python's escape of it."""
    try:
        if type(value) is bytes:
            text = value
        else:
            # The text keeps one character more than the maximum, so that the library notices and cuts a text
            # that is too long.
            text = str(value)[: _MAX_STR + 1].encode("utf-8", "backslashreplace")
    except Exception as error:
        text = f"<{type(value).__name__}: {type(error).__name__}>".encode("utf-8", "replace")
    return text.replace(b"\0", b"\\x00") if b"\0" in text else text


def _in_range(value):
    number = operator.index(value)
    if -(2**63) <= number < 2**63:
        return number
    raise OverflowError


def _kind(of):
    """Returns a type's kind, and what makes a value of the kind of one of the type, or `None` if it is one."""
    if of in _EXACT:
        return _EXACT[of], None
    if hasattr(of, "__index__"):
        return "q", _in_range
    if issubclass(of, numbers.Real):
        return "d", float
    return "P", _text


def number(value):
    """Returns an id as it is recorded, modulo 2**64, or `None` if it is no integer."""
    try:
        return operator.index(value) % 2**64
    except Exception:
        return None


def narrowed(fields):
    """Returns the fields with values that can be packed."""
    return {name: _narrowed(value) for name, value in fields.items()}


def _narrowed(value):
    kind, convert = _kind(type(value))
    try:
        if kind == "q":
            number = operator.index(value)
            if -(2**63) <= number < 2**63:
                return number
            return _U64(number) if 0 <= number < 2**64 else hex(number)
        return value if convert is None else convert(value)
    except Exception:
        return _text(value)


def _identifier(name, suffix):
    """Returns a name of the characters that a name can have, with `_` for each other, as hypertrace-mark does."""
    text = re.sub("[^A-Za-z0-9_]", "_", name) or "_"
    text = "_" + text if text[0].isdigit() else text
    return text[: _MAX_NAME - len(suffix)] + suffix


def _site(name, fields):
    """Returns the address of a new call site with these fields (name, kind), and the slot of its switch."""
    names = "".join(field + "," for field, _ in fields)
    types = bytes(_TYPES[kind] for _, kind in fields)
    site = Site(name.encode(), names.encode(), types, len(fields), 0, 0, 0)
    slot = 2166136261
    for byte in name.encode():
        slot = (slot ^ byte) * 16777619 % 2**32
    return ctypes.byref(site), slot % 4096


def _packer(arguments, words):
    """Returns a function of these arguments that packs words: each a kind, what converts the value, and the value."""
    kinds = [kind for kind, *_ in words]
    if "P" in kinds:
        # The members of a structure take any int.
        words = [(kind, _in_range if kind == "q" else convert, value) for kind, convert, value in words]
    names = {f"of_{value}": convert for _, convert, value in words}
    values = ", ".join(value if convert is None else f"of_{value}({value})" for _, convert, value in words)
    if "P" in kinds:
        members = [(f"_{at}", _WORDS[kind]) for at, kind in enumerate(kinds)]
        names["Words"], names["byref"] = type("Words", (ctypes.Structure,), {"_fields_": members}), ctypes.byref
        return eval(f"lambda {', '.join(arguments)}: byref(Words({values}))", names)
    names["pack"] = struct.Struct("=" + "".join(kinds).replace("?", "Q").replace("p", "Q")).pack
    if values == ", ".join(arguments):
        return names["pack"]
    return eval(f"lambda {', '.join(arguments)}: pack({values})", names)


def _made(name, suffix, own, fields, last=()):
    """Returns a call site: its address, what packs values, its slot.

    Its own fields (name, kind, value) come first, and others last. A value is an argument's name or a constant.
    """
    kept = [(field, kind) for field, kind, _ in own]
    words = [(kind, None, value) for _, kind, value in own]
    arguments = [value for _, _, value in own if value != "True"]
    most = _MAX_FIELDS - len(last)
    left = []
    for at, (field, value) in enumerate(fields.items()):
        field = _identifier(field, "")
        arguments.append(f"v{at}")
        if len(kept) == most or any(field == other for other, _ in kept):
            left.append(field)
            continue
        kind, convert = _kind(type(value))
        kept.append((field, kind))
        words.append((kind, convert, f"v{at}"))
    if left:
        warnings.warn(
            f"hypertrace: {name}: not recorded: {', '.join(left)}: an event has at most {_MAX_FIELDS} fields, "
            "and a name once",
            RuntimeWarning,
            stacklevel=4,
        )
    kept.extend((field, kind) for field, kind, _ in last)
    words.extend((kind, None, value) for _, kind, value in last)
    address, slot = _site(_identifier(name, suffix), kept)
    return address, _packer(arguments, words), slot


def of_event(sites, name, fields):
    """Returns the call site of an event, of those that are kept."""
    name = str(name)
    key = (name, *fields, *map(type, fields.values()))
    return sites.get(key) or _keep(sites, key, _made(name, "", [], fields))


_ID, _ANY_CLIENT = ("id", "Q", "number"), ("any_client", "?", "True")


def of_region(sites, name, any_client, fields):
    """Returns the call site of a region's begin, and that of its end, of those that are kept."""
    name = str(name)
    key = (name, any_client, *fields, *map(type, fields.values()))
    own = [_ID, _ANY_CLIENT][: 2 if any_client else 1]
    return sites.get(key) or _keep(
        sites, key, (*_made(name, "_begin", own, fields), _made(name, "_end", own, {}))
    )


# Texts of the fields `target`, by module: kept for good, as call sites have their addresses.
_TARGETS = {}


def of_task(sites, name, module, fields):
    """Returns the call site of the begin of a task's region, and those of its ends: if the task awaited, and if not.

    Readers know such a region by its begin, which has `id` and `parent` first and `target` last, as that of a span of
    Rust's crate tracing.
    """
    name, module = str(name), str(module)
    key = (name, TASK, module, *fields, *map(type, fields.values()))
    found = sites.get(key)
    if found:
        return found
    if module not in _TARGETS and len(_TARGETS) >= _MAX_SITES:
        # These texts are kept for good, so modules without end have none.
        module = ""
    if module not in _TARGETS:
        _TARGETS[module] = ctypes.create_string_buffer(_text(module))
    target = ("target", "p", str(ctypes.addressof(_TARGETS[module])))
    begin = _made(name, "_begin", [_ID, ("parent", "Q", "parent")], fields, [target])
    ends = [_made(name, "_end", own, {}) for own in ([_ID, _ANY_CLIENT], [_ID])]
    return _keep(sites, key, (*begin, *ends))


def _keep(sites, key, made):
    if len(sites) >= _MAX_SITES:
        sites.clear()
    sites[key] = made
    return made
