"""Costs that make simulated times those that were measured, by least squares.

The costs are found by Gauss and Newton's method in the logarithms of costs and times, so that all
costs stay positive and an error of 20 % counts the same in a call of 10 us and in one of 10 ms.
Steps are damped (Levenberg, Marquardt). Measurements that are far off count in proportion, not
squared (Huber), because one of a disturbed machine must not decide.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hccl_py.lab.simulation.costs import Costs, LinkCosts
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology

_UP, _OUT = ("up_latency", "up_message", "up_mib"), ("out_latency", "out_message", "out_mib")
_NAMES = (*_UP, *_OUT, "reduce", "result", "cold", "warm")
_START = dict(zip(_NAMES, (1, 1, 60, 15, 3, 200, 30, 30, 10, 0.8), strict=True))
"""In us, or us per MiB: what a current server has, roughly."""
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


@dataclass(frozen=True)
class Fitted:
    """Costs, and how far the simulation with them is off.

    Attributes:
        errors: of each sample, simulated / measured - 1.
    """

    costs: Costs
    errors: tuple[float, ...]


def fit(samples: Sequence[Sample], start: Costs, budget_s: float) -> Fitted:
    """Find costs for some measurements.

    Args:
        samples: of machines and networks that are alike. A cost that no sample depends on stays
            what it is at the start: a usual one.
        start: how many cores and which caches a machine has, and what wires there are; its other
            costs are not read.
        budget_s: no turn begins later.
    """
    solver = _Solver(samples, start)
    return solver.run(time.monotonic() + budget_s)


class _Solver:
    def __init__(self, samples: Sequence[Sample], start: Costs) -> None:
        self._samples, self._start = samples, start

    def run(self, until_s: float) -> Fitted:
        at: Vector = np.log(np.array(list(_START.values()), np.float64))
        off, damping = self._off(at), _LEAST_DAMPING
        for _ in range(_MOST_TURNS):
            if time.monotonic() > until_s:
                break
            slopes = np.empty((len(off), len(at)))
            for index in range(len(at)):
                nudged = at.copy()
                nudged[index] += _NUDGE
                slopes[:, index] = (self._off(nudged) - off) / _NUDGE
            weights = 1 / np.maximum(1, np.abs(off) / _FAR_OFF)
            weighted = (slopes * weights[:, None]).T
            while damping < _MOST_DAMPING:
                damped = weighted @ slopes + damping * np.eye(len(at))
                step = -np.linalg.solve(damped, weighted @ off)
                tried = at + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
                if _loss(tried_off := self._off(tried)) < _loss(off):
                    at, off, damping = tried, tried_off, damping / 4
                    break
                damping *= 4
            else:
                break
        return Fitted(self._costs(at), tuple(float(one) for one in np.expm1(off)))

    def _off(self, at: Vector) -> Vector:
        """Return by how much each sample is off, as a logarithm."""
        costs = self._costs(at)
        return np.array(
            [
                math.log(
                    simulate(one.what, one.topology, costs, one.num_bytes, num_calls=_NUM_CALLS).us
                    / one.us
                )
                for one in self._samples
            ]
        )

    def _costs(self, at: Vector) -> Costs:
        found = dict(zip(_START, (float(f"{one:.5g}") for one in np.exp(at)), strict=True))
        links: list[LinkCosts] = []
        for names, link in ((_UP, self._start.scale_up), (_OUT, self._start.scale_out)):
            latency_us, message_us, us_per_mib = (found[name] for name in names)
            links.append(
                replace(link, latency_us=latency_us, message_us=message_us, us_per_mib=us_per_mib)
            )
        return replace(
            self._start,
            scale_up=links[0],
            scale_out=links[1],
            reduce_us_per_mib=found["reduce"],
            cold_us_per_mib=found["cold"],
            warm_share=found["warm"],
            result_us_per_mib=found["result"],
        )


def _loss(off: Vector) -> float:
    size = np.abs(off)
    near = np.minimum(size, _FAR_OFF)
    return float(np.sum(near * near + 2 * _FAR_OFF * (size - near)))
