"""Every kind of value, of name and of event, as tests/it/python.rs expects them."""

import enum
import logging

import hypertrace


class Unprintable:
    def __str__(self):
        raise ValueError("no text")


class Number(enum.IntEnum):
    THREE = 3


hypertrace.event("none")
hypertrace.event("ints", least=-(2**63), most=2**63 - 1, u64=2**64 - 1, huge=2**64, minus=-(2**63) - 1, long=10**5000)
hypertrace.event("ints", least=1, most=2, u64=3, huge=4, minus=5, long=6)
hypertrace.event("kinds", yes=True, no=None, half=0.5, raw=b"a\xff", many=[1, 2], three=Number.THREE, bad=Unprintable())
hypertrace.event("texts", nul="a\0b", surrogate="x\udcff", long="y" * 5000, wide="x" + "\u00e9" * 2000, raw=b"q\0r")
hypertrace.event("odd name! \u00fc", **{"a b": 1, "class": 2, "": 3, "1x": 4, "a-b": 5})
hypertrace.event("n" * 100, name=1, self=2, fields=3)
hypertrace.event("many", **{f"f{i}": i for i in range(40)})
hypertrace.event(["no", "name"])
with hypertrace.region("many", **{f"f{i}": i for i in range(40)}):
    pass
with hypertrace.region("own", id=7, k="v"):
    pass
with hypertrace.region("own", id=-1, k=2**70):
    pass
with hypertrace.region("own", id="none"):
    pass
with hypertrace.region("any", any_client=True, n=1, k="v"):
    pass

logger = logging.getLogger("shop.cart")
logger.addHandler(hypertrace.LogHandler())
logger.setLevel(logging.DEBUG)
logger.info("%d items", 3)
logger.critical("a\nb")
logger.log(42, "level without a name")
