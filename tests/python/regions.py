"""Regions of functions, coroutines, generators and threads. An argument chooses the part."""

import asyncio
import sys
import threading

import hypertrace


@hypertrace.region("decorated", kind="function")
def function(n):
    return n + 1


@hypertrace.region("coroutine")
async def coroutine(n):
    await asyncio.sleep(0.001)
    return n + 1


@hypertrace.region("generator")
def generator(n):
    got = yield n
    return got


def functions():
    """Decorated functions return and raise what they did."""
    assert function(1) == 2 and function.__name__ == "function"
    assert asyncio.run(coroutine(1)) == 2 and asyncio.iscoroutinefunction(coroutine)
    made = generator(5)
    assert next(made) == 5
    try:
        made.send("sent")
    except StopIteration as stop:
        assert stop.value == "sent"
    try:
        with hypertrace.region("outer"):
            with hypertrace.region("raises"):
                raise KeyError("passes")
    except KeyError:
        hypertrace.event("passed")

    async def values():
        yield 1

    try:
        hypertrace.region("async_generator")(values)
    except TypeError as error:
        assert "asynchronous generator" in str(error)
    else:
        raise AssertionError("it is decorated")


def interleaved():
    """Coroutines of one thread whose regions are open at the same time, and end in another order."""

    async def task(n, delay):
        with hypertrace.region("task", n=n):
            await asyncio.sleep(delay)

    async def all_tasks():
        await asyncio.gather(*[task(n, 0.001 * (10 - n % 10)) for n in range(200)])

    asyncio.run(all_tasks())


def nested():
    """Regions inside those of their own task, while those of other tasks begin and end."""

    async def fetch(n):
        with hypertrace.region("request", n=n):
            await asyncio.sleep(0.001)
            await load(n)

    @hypertrace.region("load", kind="of a request")
    async def load(n):
        with hypertrace.region("parse"):
            sum(range(1_000))
        with hypertrace.region("own", target=n, name="own"):
            await asyncio.sleep(0)
        await asyncio.sleep(0.005 * (4 - n))
        hypertrace.event("loaded", n=n)

    async def all_tasks():
        await asyncio.gather(*[fetch(n) for n in range(4)])

    asyncio.run(all_tasks())


def many():
    """100,000 regions in a coroutine."""

    async def work():
        for n in range(100_000):
            with hypertrace.region("step", n=n):
                if n % 1000 == 0:
                    await asyncio.sleep(0)

    asyncio.run(work())


def threads():
    """Regions of threads, and ones that end on another thread."""
    open_ones = []

    def work(n):
        for _ in range(500):
            with hypertrace.region("threaded", n=n):
                pass
        region = hypertrace.region("moved", any_client=True, n=n)
        region.__enter__()
        open_ones.append(region)

    all_threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    for region in open_ones:
        region.__exit__(None, None, None)


{"functions": functions, "interleaved": interleaved, "many": many, "nested": nested, "threads": threads}[sys.argv[1]]()
