"""What takes long says so, and how far it has come."""

from __future__ import annotations

import threading

import pytest
from node_shapes import one_node

from hccl_py.algorithms.custom import algorithm
from hccl_py.plan import progress
from hccl_py.plan.language import PlanBuilder, data


def test_slow_function_is_named_while_it_writes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = threading.Event()
    monkeypatch.setattr(progress.ProofProgress.__init__, "__defaults__", (0.001,))
    lines: list[str] = []
    monkeypatch.setattr(
        progress.logger, "warning", lambda text, *of: (lines.append(text % of), said.set())
    )

    def slow(me: int, n: int, plan: PlanBuilder) -> None:
        if me == 1:
            said.clear()
            assert said.wait(60)
        plan.send([1 - me], data[:])
        plan.recv_reduce([1 - me], data[:])

    monkeypatch.setattr(progress, "PERIOD_S", 0.001)
    algorithm("all_reduce")(slow).verify(one_node(2))
    assert any("test_progress.py:slow writes the plan of rank 1, for" in line for line in lines)
