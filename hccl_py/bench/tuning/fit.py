"""Numbers of the cost model from measurements, by least squares of the relative errors."""

import numpy as np
import numpy.typing as npt

from hccl_py.algorithms.choice.cost import NUMBERS, Cost, cost_of, cost_of_plans
from hccl_py.bench.tuning.sweep import PING_PONG, Measurement, Swept
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes, Plan, PlanBuilder, Shape, data

_MOST_TURNS = 50
_START = (1.0, 1.0, 100.0, 100.0, 10.0, 10.0, 1000.0, 100.0)
Numbers = tuple[float | None, ...]


def fit(swept: Swept) -> Numbers:
    """Return the numbers that predict the measurements best; None for a link that was not measured.

    The model is linear except for one choice: whether the busiest rank or the work of all ranks
    limits a call. Each turn makes this choice with the numbers of the turn before.
    """
    numbers, measured_us = np.array(_START), np.array([one.us for one in swept.measurements])
    for turn in range(_MOST_TURNS):
        rows = _rows(swept, tuple(numbers))
        solved = _least_squares(rows / measured_us[:, None])
        if np.allclose(solved, numbers, rtol=1e-9):
            break
        numbers = solved if turn < _MOST_TURNS // 2 else (solved + numbers) / 2
    return tuple(
        float(number) if rows[:, index].any() else None for index, number in enumerate(numbers)
    )


def errors(swept: Swept, numbers: Numbers) -> npt.NDArray[np.float64]:
    """Return predicted / measured - 1 of every measurement."""
    known = tuple(number or 0.0 for number in numbers)
    predicted_us: npt.NDArray[np.float64] = _rows(swept, known) @ np.array(known)
    measured_us = np.array([one.us for one in swept.measurements])
    return np.asarray(predicted_us / measured_us - 1, np.float64)


def _rows(swept: Swept, numbers: tuple[float, ...]) -> npt.NDArray[np.float64]:
    crowd = max(1.0, max(map(len, swept.nodes)) / swept.cores_per_node)
    return np.array(
        [
            # During a round trip the other ranks sleep.
            _cost(one, swept.nodes).row(
                one.bytes, 1.0 if one.collective == PING_PONG else crowd, numbers
            )
            for one in swept.measurements
        ]
    )


def _cost(one: Measurement, nodes: Nodes) -> Cost:
    if one.collective == PING_PONG:
        return _ping_pong(one.algorithm)
    root = 0 if COLLECTIVES[one.collective].rooted else None
    found = cost_of(one.collective, one.algorithm, nodes, root)
    if found is None:
        raise ValueError(f"{one.collective} among {sum(map(len, nodes))} ranks cannot be examined")
    return found


def _ping_pong(link: str) -> Cost:
    """Return the cost of a round trip, from plans of two ranks for a message there and one back."""
    nodes: Nodes = ((0, 1),) if link == "scale_up" else ((0,), (1,))
    plans = {}
    for rank in (0, 1):
        builder = PlanBuilder(Plan(PING_PONG, link, rank, 2, shape=Shape(1)), nodes)
        if rank == 0:
            builder.send([1], data[0])
        builder.recv(1 - rank, data[0])
        if rank == 1:
            builder.send([0], data[0])
        plans[rank] = builder.finish()
    found = cost_of_plans(plans, nodes)
    assert found is not None
    return found


def _least_squares(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Solve rows x = 1 for x >= 0: the most negative unknown becomes 0 until none is negative."""
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    kept = [index for index in range(len(NUMBERS)) if rows[:, index].any()]
    solved = np.zeros(len(NUMBERS))
    while kept:
        some = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)[0]
        if some.min() >= 0:
            solved[kept] = some / scale[kept]
            break
        kept.pop(int(some.argmin()))
    return solved
