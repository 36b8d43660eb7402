"""Nothing grows unpaid: how many lines each room may have; the tests are a room of their own.

A change that needs more raises its row in the same commit and says why, or cuts elsewhere. A row is
lowered when its room got smaller. `python tests/test_budget.py` prints the rooms beside their rows.
"""

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = ROOT / "hccl_py/communicator.py"
SUFFIXES = {".py", ".cc", ".h", ".html"}

BUDGET = {
    "transport/wire": 1_032,
    "transport/bootstrap": 3_030,
    "transport/control": 1_810,
    "transport/network transport/providers transport/verbs transport/*": 4_262,
    "transport/csrc": 10_256,
    "hccl_py/communicator.py": 370,
    "hccl_py/calls hccl_py/memory hccl_py/membership hccl_py/graphs": 4_995,
    "hccl_py/*": 1_630,
    "hccl_py/plan hccl_py/algorithms": 4_379,
    "hccl_py/diagnosis hccl_py/observe": 3_387,
    "hccl_py/csrc": 12_393,
    "hccl_py/torch_backend": 5_640,
    "hccl_py/schedulers hccl_py/integrations": 3_924,
    "launcher": 9_160,
    "hccl_py/bench": 5_530,
    "hccl_py/lab": 9_752,
    "hccl_py/horovod": 3_090,
    "hccl_py/capi": 3_182,
    "benchmarks": 4_282,
    "tests": 66_747,
}
"""Lines by room: folders and files, `/*` for the files of a folder that are in no other row."""


def files(place: str) -> set[Path]:
    path = ROOT / place.removesuffix("/*")
    if path.is_file():
        return {path}
    found = path.glob("*") if place.endswith("/*") else path.rglob("*")
    # The public class has a row of its own in the folder of others.
    return {one for one in found if one.suffix in SUFFIXES and one != CONTRACT}


def members(row: str) -> set[Path]:
    return set().union(*map(files, row.split()))


def lines(row: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in members(row))


@pytest.mark.parametrize("row", BUDGET)
def test_room_is_within_its_budget(row: str) -> None:
    assert lines(row) <= BUDGET[row]


def test_every_file_is_in_one_room() -> None:
    tops = ("hccl_py", "transport", "launcher", "benchmarks", "tests")
    every = {CONTRACT}.union(*map(files, tops))
    homes = Counter(path for row in BUDGET for path in members(row))
    assert homes == Counter(every)


if __name__ == "__main__":
    for row in BUDGET:
        print(f"{lines(row):6} of {BUDGET[row]:6}  {row}")
    product = sum(map(lines, set(BUDGET) - {"tests"}))
    print(f"{product:6}  all without the tests")
