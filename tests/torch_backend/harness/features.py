"""Features of torch.distributed: each a check that ranks run on hccl, and again on gloo.

    @feature("Point to point", "tags match in any order", covers=("isend", "irecv"))
    def test_tags_match_in_any_order(rank, world_size):
        ...                                     # an initialised group of hccl, or of gloo
        return received.tolist()                # compared, rank by rank

The decorator makes a test of it. hccl must complete it; what it returned must equal what `alone`
computes in one process, or what gloo returned when `gloo.xz` was recorded. With HCCL_TEST_GLOO=1,
in the nightly tier, gloo runs too: its results must be the recorded ones, and docs/tables/torch.md
must say what it did (`table.py` writes both). All checks of a file share the processes, one set for
each backend, and each check has a group of its own.
"""

import functools
import lzma
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_rows import FEATURES, Check, Feature, documented, documented_version
from feature_runs import HOPELESS, Outcome, outcome_of

SAME = "the same"
RECORDING = Path(__file__).with_name("gloo.xz")
"""What gloo returned, where it is the oracle; `.ci/torch-table` writes it."""


def feature(section: str, name: str, **options: Any) -> Callable[[Check], Callable[[], None]]:
    """Make a test of the check below; `options` are `Feature`'s."""

    def make(check: Check) -> Callable[[], None]:
        row = Feature(section, name, check, **options)

        @pytest.mark.timeout(300)  # the first of a file runs all of them
        def test() -> None:
            __tracebackhide__ = True
            judge(row)

        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        test.feature = row  # type: ignore[attr-defined]
        FEATURES[row.test] = row
        return test

    return make


def judge(row: Feature) -> None:
    """Fail unless hccl did what one process computes, or what gloo did."""
    __tracebackhide__ = True
    mine = outcome_of(row, "hccl")
    if mine.values is None:
        pytest.fail(f"on hccl: {mine.trouble}\n{mine.story}", pytrace=False)
    assert any(value is not None for value in mine.values), "a check has to return something"
    if row.alone is not None:
        check_equal(mine.values, row.alone(row.world_size), row.tolerance, "one process")
    else:
        assert row.key in recording(), f"no recording of {row.test}; run .ci/torch-table"
        check_equal(mine.values, recording()[row.key], row.tolerance, "gloo, when recorded,")
    if os.environ.get("HCCL_TEST_GLOO") == "1":
        judge_gloo(row, mine)


def judge_gloo(row: Feature, mine: Outcome) -> None:
    """Fail unless gloo did what its recording and docs/tables/torch.md say."""
    __tracebackhide__ = True
    told = documented().get(row.test, "")
    # What takes long to find out was measured when the table was written.
    gloo = Outcome(None, told) if told.startswith(HOPELESS) else outcome_of(row, "gloo")
    if row.alone is None and (gloo.values is None or row.differs):
        pytest.fail(f"gloo: {gloo.trouble}. Give `alone`.\n{gloo.story}", pytrace=False)
    if gloo.values is not None and not row.differs:
        check_equal(mine.values or [], gloo.values, row.tolerance, "gloo")
    if told and documented_version() == torch.__version__.partition("+")[0]:
        assert told == describe(row, mine, gloo), (
            f"docs/tables/torch.md of {row.test}; run .ci/torch-table"
        )


@functools.cache
def recording() -> dict[str, list[Any]]:
    """Return what the ranks of gloo returned, by test."""
    values: dict[str, list[Any]] = pickle.loads(lzma.decompress(RECORDING.read_bytes()))
    return values


def record() -> None:
    """Run every check that gloo is the oracle of on gloo, and write the recording."""
    rows = [row for row in FEATURES.values() if row.alone is None]
    values = {row.key: outcome_of(row, "gloo").values for row in rows}
    if lacking := [test for test, one in values.items() if one is None]:
        raise SystemExit(f"gloo has no result, so give `alone`: {lacking}")
    RECORDING.write_bytes(lzma.compress(pickle.dumps(values)))


def check_equal(mine: Sequence[Any], others: Sequence[Any], tolerance: float, name: str) -> None:
    """Compare what the ranks returned."""
    __tracebackhide__ = True
    for rank, (left, right) in enumerate(zip(mine, others, strict=True)):
        message = f"rank {rank}: hccl returned {left!r}, {name} {right!r}"
        assert _equal(left, right, tolerance), message


def _equal(left: Any, right: Any, tolerance: float) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.is_floating_point() or left.is_complex():
            wide = torch.complex128 if left.is_complex() else torch.float64
            return torch.allclose(left.to(wide), right.to(wide), tolerance, tolerance, True)
        return torch.equal(left, right)
    if isinstance(left, float) and isinstance(right, float):
        both = torch.tensor([left], dtype=torch.float64), torch.tensor([right], dtype=torch.float64)
        return torch.allclose(*both, tolerance, tolerance, True)
    if isinstance(left, dict) and isinstance(right, dict):
        same = left.keys() == right.keys()
        return same and all(_equal(left[key], right[key], tolerance) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        same = len(left) == len(right)
        return same and all(map(lambda a, b: _equal(a, b, tolerance), left, right))
    return type(left) is type(right) and bool(left == right)


def describe(row: Feature, mine: Outcome, gloo: Outcome) -> str:
    """Say what gloo makes of it, for the table."""
    if gloo.values is None:
        return gloo.trouble
    try:
        check_equal(mine.values or [], gloo.values, row.tolerance, "gloo")
    except AssertionError:
        return f"another result: {row.differs}"
    return SAME
