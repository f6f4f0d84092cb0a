#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Writes stats.json: what SciPy says of made sets of runs. Needs SciPy 1.17 or later."""

import json
import pathlib

import numpy
import scipy
from scipy import stats

random = numpy.random.default_rng(34)


def runs(n, mean, deviation, decimals=3):
    return [float(value) for value in random.normal(mean, deviation, n).round(decimals)]


def difference(x, y, axis=-1):
    return numpy.abs(numpy.mean(y, axis=axis) - numpy.mean(x, axis=axis))


SETS = {
    "apart": (runs(10, 50_000, 300), runs(10, 52_900, 400)),
    "alike": (runs(5, 50_000, 3_000), runs(5, 50_000, 3_000)),
    "near": (runs(6, 100, 4), runs(9, 104, 1)),
    "two": (runs(2, 10, 1), runs(2, 12, 1)),
    "one_side_equal": ([7.0] * 5, runs(4, 8, 1)),
    "ties": ([1.0, 1.0, 2.0, 2.0, 2.0, 3.0], [2.0, 2.0, 3.0, 3.0, 3.0, 3.0]),
    "tenths": ([0.1, 0.2, 0.3, 0.3], [0.1, 0.2, 0.2, 0.7]),
    # The values are eight integers, so that SciPy's sums and means are exact.
    "large_numbers": (runs(8, 1e12, 50, 0), runs(8, 1e12 + 60, 50, 0)),
    "many": (runs(20, 50_000, 3_000), runs(20, 52_500, 3_000)),
    "many_alike": (runs(20, 50_000, 3_000), runs(20, 50_000, 3_000)),
}


def fixture(name, a, b):
    test = stats.ttest_ind(b, a, equal_var=False)
    intervals = {}
    for confidence in (0.9, 0.95, 0.99):
        interval = test.confidence_interval(confidence)
        intervals[confidence] = [float(interval.low), float(interval.high)]
    exact = len(a) + len(b) <= 24
    # The statistic is the size of the difference, because SciPy's own "two-sided" p value is twice the
    # smaller tail.
    permutation = stats.permutation_test(
        (a, b),
        difference,
        vectorized=True,
        alternative="greater",
        n_resamples=numpy.inf if exact else 1_000_000,
        batch=10_000,
        rng=numpy.random.default_rng(1),
    )
    # The difference is the usual sum of two quantiles, and its power comes from the noncentral t
    # distribution.
    power = []
    for level, wanted in ((0.01, 0.8), (0.05, 0.95)):
        critical = stats.t.ppf(1 - level / 2, test.df)
        size = critical + stats.t.ppf(wanted, test.df)
        error = (interval.high - interval.low) / 2 / stats.t.ppf(0.995, test.df)
        found = float(stats.nct.sf(critical, test.df, size))
        power.append({"level": level, "power": wanted, "difference": float(size * error), "found": found})
    return {
        "name": name,
        "a": a,
        "b": b,
        "degrees": float(test.df),
        "intervals": [{"confidence": confidence, "ends": ends} for confidence, ends in intervals.items()],
        "permutation": {"exact": exact, "p": float(permutation.pvalue)},
        "smallest_difference": power,
    }


P_VALUES = [
    [0.01, 0.04, 0.03, 0.005],
    [0.5, 0.5, 0.5],
    [0.0, 1.0, 0.2],
    [0.03],
    [],
    [float(p) for p in random.uniform(0, 1, 40).round(6)] + [1e-6, 1e-5, 1e-4, 0.0011],
]

result = {
    "scipy": scipy.__version__,
    "sets": [fixture(name, a, b) for name, (a, b) in SETS.items()],
    "benjamini_hochberg": [
        {"p": p, "adjusted": [float(q) for q in stats.false_discovery_control(p)] if p else []} for p in P_VALUES
    ],
}
path = pathlib.Path(__file__).with_name("stats.json")
path.write_text(json.dumps(result, indent=1) + "\n")
