"""The measurements of `hccl-bench --tune`: the file that `HCCL_TUNING` names.

Rank 0 reads it and sends it to all ranks as they connect, so that all choose alike. The choice
depends only on the file and the nodes.
"""

import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hccl_py.algorithms.choice.cost import NUMBERS, Row, cost_of, product
from hccl_py.algorithms.json_file import read_json
from hccl_py.algorithms.table import names_for
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError

VARIABLE = "HCCL_TUNING"
FORMAT = 2
_ONE_REDUCTION = 1
"""The previous format: one reduction speed for both classes of link."""
_SHARED = ("format", "layout", "cores_per_node", "numbers", "measurements")

_received: dict[str, bytes] = {}
"""The first file of this process, by value of the variable: all its communicators choose alike, and
rank 0 of a subset may be on a host without the file."""


class Estimates(NamedTuple):
    """Microseconds by algorithm, and their source."""

    times_us: Mapping[str, float]
    source: str


@dataclass(frozen=True)
class Tuning:
    """A tuning file.

    Attributes:
        layout: number of ranks on each measured node.
        cores_per_node: cores of the measured machine.
        numbers: by `cost.NUMBERS`; None if the layout had no such link.
        measured: for each collective and algorithm, bytes and microseconds, bytes ascending.
    """

    layout: tuple[int, ...]
    cores_per_node: float
    numbers: tuple[float | None, ...]
    measured: Mapping[tuple[str, str], tuple[tuple[int, float], ...]]

    def crowd(self, nodes: Nodes) -> float:
        """Return how many ranks share a core, at least 1."""
        return max(1.0, max(map(len, nodes)) / self.cores_per_node)

    def estimate(
        self, collective: str, num_bytes: int, nodes: Nodes, root: int | None
    ) -> Estimates:
        """Return the time of each algorithm: measured if these nodes were, else predicted.

        The result is empty if neither is possible: a link class without numbers, a very large
        world.
        """
        names = names_for(collective)
        if tuple(map(len, nodes)) == self.layout:
            curves = {name: self.measured.get((collective, name), ()) for name in names}
            times = {name: _at(num_bytes, curve) for name, curve in curves.items() if curve}
            if times:
                return Estimates(times, "measured")
        if any(self.numbers[index] is None for index in _needed(nodes)):
            return Estimates({}, "the tuning lacks numbers for a class of link")
        numbers: Row = tuple(number or 0.0 for number in self.numbers)
        costs = {name: cost_of(collective, name, nodes, root) for name in names}
        crowd = self.crowd(nodes)
        predicted = {
            name: product(one.row(num_bytes, crowd, numbers), numbers)
            for name, one in costs.items()
            if one is not None
        }
        return Estimates(predicted, "predicted" if predicted else "too many ranks to predict")


def read(path: Path) -> tuple[dict[str, Any], Tuning]:
    """Read a tuning file; return its content and the parsed tuning.

    Raise InvalidArgumentError if it cannot be read, or is no tuning file.
    """
    content = read_json(path)
    try:
        return content, parse(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{path}: expected a file of format {FORMAT} that hccl-bench --tune wrote, "
            f"got {type(error).__name__}: {error}; run hccl-bench --tune {path} again"
        ) from error


def read_for_all_ranks(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the bytes that rank 0 sends to all ranks; empty without `HCCL_TUNING`.

    Raise InvalidArgumentError if the file cannot be read, or is no tuning file.
    """
    path = environ.get(VARIABLE, "")
    if not path or path in _received:
        return _received.get(path, b"")
    try:
        content, _ = read(Path(path))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{VARIABLE}={error}") from error
    for one in content["measurements"]:
        one.pop("rounds_us", None)
    return json.dumps({key: content[key] for key in _SHARED}, separators=(",", ":")).encode()


def tuning_of(received: bytes, environ: Mapping[str, str] = os.environ) -> Tuning | None:
    """Return the tuning that rank 0 sent to all ranks, None if there is none."""
    if not received:
        return None
    _received[environ.get(VARIABLE, "")] = received
    return parse(json.loads(received))


def parse(content: dict[str, Any]) -> Tuning:
    """Parse a tuning file's content; ValueError, KeyError, TypeError: it is malformed."""
    if content["format"] not in (_ONE_REDUCTION, FORMAT):
        raise ValueError(f"format {content['format']!r}")
    known = content["numbers"]
    if content["format"] == _ONE_REDUCTION:
        either = dict.fromkeys((n for n in NUMBERS if "reduce" in n), known["reduce_us_per_mib"])
        known = known | either
    numbers = tuple(known[name] for name in NUMBERS)
    cores = content["cores_per_node"]
    curves: defaultdict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for one in content["measurements"]:
        curves[one["collective"], one["algorithm"]].append((one["bytes"], one["us"]))
    times = [value for curve in curves.values() for point in curve for value in point]
    for value in (*times, cores, *content["layout"]):
        if not 0 < value < math.inf:
            raise ValueError(f"{value!r} where a positive number belongs")
    for name, number in zip(NUMBERS, numbers, strict=True):
        if number is not None and not 0 <= number < math.inf:
            raise ValueError(f"{name} {number!r}")
    measured = {key: tuple(sorted(curve)) for key, curve in curves.items()}
    return Tuning(tuple(content["layout"]), cores, numbers, measured)


def _needed(nodes: Nodes) -> list[int]:
    """Return the numbers that a prediction for these nodes needs."""
    classes = {"scale_up": max(map(len, nodes)) > 1, "scale_out": len(nodes) > 1}
    return [
        index
        for index, name in enumerate(NUMBERS)
        if any(on and name.startswith(key) for key, on in classes.items())
    ]


def _at(num_bytes: int, curve: tuple[tuple[int, float], ...]) -> float:
    """Interpolate between the sizes measured, both on logarithmic scales; beyond, in proportion."""
    if num_bytes <= curve[0][0]:
        return curve[0][1]
    for (low, before_us), (high, after_us) in zip(curve, curve[1:], strict=False):
        if num_bytes <= high:
            part = math.log(num_bytes / low) / math.log(high / low)
            return float(before_us * (after_us / before_us) ** part)
    last, last_us = curve[-1]
    return last_us * num_bytes / last
