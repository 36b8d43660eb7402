"""A rank that leaves while others still call is no crash: all say that it left, and after what."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ended_scripts import end_as_script
from injected_groups import GROUPS, Group
from injections import ONE_NODE, RAISE_S, TWO_NODES, Layout
from leftovers import settled_holdings, wait_for_return
from quiet_clock import Moment
from random_calls import Array, Call
from ranks import run_ranks

NUM_CALLS = 41
LEAVER = 3
CALL = Call("all_reduce", "float32", 25, 0, blocks=True, registered=False)


def end_in_finally(group: Group) -> None:
    try:
        raise ValueError("bad batch")
    except ValueError:
        group.close()


WAYS: dict[str, tuple[str, Callable[[Group], None]]] = {
    "close": ("native", lambda group: group.close()),
    "finally of an exception": ("torch", end_in_finally),
    "end of script": ("native", lambda group: end_as_script()),
    "end of script, torch": ("torch", lambda group: end_as_script()),
    "sys.exit(0)": ("native", lambda group: end_as_script(SystemExit(0))),
    "destroy_process_group": ("torch", lambda group: group.close()),
}
MORE = pytest.mark.nightly("faults")


def all_but_one_go_on(rank: int, world_size: int, way: str) -> tuple[object, ...] | None:
    tempfile.tempdir = os.environ["TMPDIR"]
    api, leave = WAYS[way]
    GROUPS[api]("warm-up").close()
    before = settled_holdings(os.environ["TMPDIR"])
    group = GROUPS[api]("job")
    data = np.ones(CALL.count, CALL.dtype)
    for _ in range(NUM_CALLS):
        group.calls.start(CALL, data, data)
    if rank == LEAVER:
        leave(group)
        return None
    told = _call_once_more(group, data)
    group.close()
    return *told, str(wait_for_return(before, os.environ["TMPDIR"]))


def _call_once_more(group: Group, data: Array) -> tuple[float, str, object, object]:
    """Return how long it took to raise, and what it told; nothing keeps the error alive."""
    began = Moment.now()
    try:
        group.calls.start(CALL, data, data)
    except group.error as error:
        took_s = Moment.now() - began
        return took_s, str(error), getattr(error, "cause", None), getattr(error, "rank", None)
    raise AssertionError(f"rank {LEAVER} has left")


@pytest.mark.parametrize(
    ("way", "layout"),
    [
        pytest.param(way, (ONE_NODE, TWO_NODES)[i % 2], id=way, marks=() if i < 3 else MORE)
        for i, way in enumerate(WAYS)
    ],
)
def test_leaver_is_told_from_a_crash(tmp_path: Path, way: str, layout: Layout) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    stories = run_ranks(
        all_but_one_go_on,
        layout.world_size,
        way,
        env=lambda rank: {
            "HCCL_NODE_ID": str(layout.node_of(rank)),
            "TMPDIR": str(folder),
            "HCCL_TRACE_DIR": str(tmp_path / "traces"),
        },
        victims={LEAVER},
    )
    told = [story for story in stories if story is not None]
    assert len(told) == layout.world_size - 1
    assert len({story[1:] for story in told}) == 1, told
    for took_s, text, cause, culprit, left in told:
        assert f"rank {LEAVER}" in text
        assert f"left after collective {NUM_CALLS}" in text
        assert ("(handling ValueError: bad batch)" in text) == (way == "finally of an exception")
        assert "died" not in text
        assert (cause, culprit) == ("left", LEAVER)
        assert took_s < RAISE_S
        assert left == "[]"
