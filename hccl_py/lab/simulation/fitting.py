"""Fits costs to measured times, by least squares.

The method is that of Gauss and Newton, in the logarithms of costs and times: all costs stay
positive, and an error of 20 % counts the same in a call of 10 us and in one of 10 ms. Steps are
damped (Levenberg, Marquardt). Large errors count linearly, not squared (Huber), because a disturbed
measurement must not decide.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hccl_py.lab.simulation.costs import LINK_NUMBERS, Costs
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology

_OTHERS = ("reduce_us_per_mib", "result_us_per_mib", "cold_us_per_mib", "warm_share")
_START = (1, 1, 60, 15, 3, 200, 30, 30, 10, 0.8)
"""Roughly those of a current server: of both classes of link, then `_OTHERS`."""
_NUM_CALLS = 3
_FAR_OFF = 0.7  # in logarithms: a factor of two
_NUDGE = 0.15
_LONGEST_STEP = 1.2
_MOST_TURNS = 10
_LEAST_DAMPING, _MOST_DAMPING = 0.3, 1e3

Vector = npt.NDArray[np.float64]


class Sample(NamedTuple):
    """A measured call."""

    what: str  # as `simulate` takes it
    topology: Topology
    num_bytes: int
    us: float


def fit(samples: Sequence[Sample], start: Costs, budget_s: float) -> tuple[Costs, list[float]]:
    """Find costs that match measurements; return them and the error of each sample.

    The errors are simulated / measured - 1.

    Args:
        samples: of machines and networks that are alike. A cost that no sample depends on keeps
            its value of `_START`.
        start: cores, caches and wires of a machine; its other costs are not read.
        budget_s: the last turn begins within this time.
    """
    until_s = time.monotonic() + budget_s
    at: Vector = np.log(np.array(_START, np.float64))
    off, damping = _off(samples, _costs(start, at)), _LEAST_DAMPING
    for _ in range(_MOST_TURNS):
        if time.monotonic() > until_s:
            break
        slopes = np.empty((len(off), len(at)))
        for index in range(len(at)):
            nudged = at.copy()
            nudged[index] += _NUDGE
            slopes[:, index] = (_off(samples, _costs(start, nudged)) - off) / _NUDGE
        weights = 1 / np.maximum(1, np.abs(off) / _FAR_OFF)
        weighted = (slopes * weights[:, None]).T
        while damping < _MOST_DAMPING:
            damped = weighted @ slopes + damping * np.eye(len(at))
            step = -np.linalg.solve(damped, weighted @ off)
            tried = at + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
            if _loss(tried_off := _off(samples, _costs(start, tried))) < _loss(off):
                at, off, damping = tried, tried_off, damping / 4
                break
            damping *= 4
        else:
            break
    return _costs(start, at), np.expm1(off).tolist()


def _off(samples: Sequence[Sample], costs: Costs) -> Vector:
    """Return the error of each sample as a logarithm."""
    simulated = (
        simulate(one.what, one.topology, costs, one.num_bytes, num_calls=_NUM_CALLS).us
        for one in samples
    )
    pairs = zip(simulated, samples, strict=True)
    return np.array([math.log(us / one.us) for us, one in pairs])


def _costs(start: Costs, at: Vector) -> Costs:
    found: list[Any] = [float(f"{one:.5g}") for one in np.exp(at)]
    up, out, others = found[:3], found[3:6], found[6:]
    return replace(
        start,
        scale_up=replace(start.scale_up, **dict(zip(LINK_NUMBERS, up, strict=True))),
        scale_out=replace(start.scale_out, **dict(zip(LINK_NUMBERS, out, strict=True))),
        **dict(zip(_OTHERS, others, strict=True)),
    )


def _loss(off: Vector) -> float:
    size = np.abs(off)
    near = np.minimum(size, _FAR_OFF)
    return float(np.sum(near * near + 2 * _FAR_OFF * (size - near)))
