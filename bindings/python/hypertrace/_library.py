"""Finds libhypertrace.so, and opens the channel to the recorder."""

import ctypes
import os
import warnings

#: Version of the library for which this package is made. Until version 1.0, each minor version has an
#: interface of its own.
VERSION = "0.1"


class Site(ctypes.Structure):
    """``struct hypertrace_site`` of hypertrace.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("fields", ctypes.c_char_p),
        ("types", ctypes.c_char_p),
        ("count", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("name_hash", ctypes.c_uint32),
    ]


def _paths():
    """Yields where the library may be, the first first."""
    named = os.environ.get("HYPERTRACE_LIBRARY")
    if named:
        yield named
        return
    bundled = os.path.join(os.path.dirname(__file__), "libhypertrace.so")
    if os.path.exists(bundled):
        yield bundled
    yield "libhypertrace.so"


def open_library():
    """Returns the library with an open channel, or ``None``, and else why there is none."""
    for path in _paths():
        try:
            # PyDLL keeps the interpreter's lock during calls, because the calls are short, and never wait
            # once the channel is open.
            library = ctypes.PyDLL(path)
        except OSError as error:
            why = f"no libhypertrace.so: {error}"
            continue
        return _open(library, path)
    return None, _is_wanted(why)


def _open(library, path):
    try:
        library.hypertrace_version.restype = ctypes.c_char_p
        version = library.hypertrace_version().decode()
    except AttributeError:
        version = "unknown"
    if not (version + ".").startswith(VERSION + "."):
        return None, _is_wanted(
            f"{path} is of version {version}, and this package is for {VERSION}: install both from one tree"
        )
    why = ctypes.create_string_buffer(1024)
    library.hypertrace_open.restype = ctypes.c_bool
    library.hypertrace_open.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    if not library.hypertrace_open(None, why, len(why)):
        return None, _is_wanted(why.value.decode("utf-8", "replace"))
    return library, ""


def _is_wanted(why):
    """Warns why nothing is recorded, if a recorder has started this program."""
    if "HYPERTRACE_SEGMENT" in os.environ:
        warnings.warn(f"hypertrace records nothing: {why}", RuntimeWarning, stacklevel=2)
    return why
