"""The text of --dry-run."""

from __future__ import annotations

from hccl_py.launcher.placement.binding import Place
from hccl_py.launcher.placement.dry_run import PlannedRank, render

COMMAND = ("python", "train.py", "--name", "two words")


def planned(rank: int, place: Place | None, **environment: str | None) -> PlannedRank:
    return PlannedRank("a", 0, rank, rank, place, {"RANK": str(rank), **environment}, COMMAND)


def test_map_variables_and_commands_of_two_ranks() -> None:
    shared = {
        "HCCL_SECRET": "c0ffee",
        "HF_TOKEN": "x",
        "PGPASSWORD": "x",
        "TOKENIZERS_PARALLELISM": "false",
        "https_proxy": "http://me:x@proxy",
    }
    place = Place((0, 1, 4), (0,), 2, is_bound=True)
    text = render([planned(0, place, **shared), planned(1, None, **shared, PORT=None)], ["a note"])
    assert (
        text
        == """\
host  node  local rank   rank  threads  numa   cpus
a        0           0      0        2  0      0-1,4
a        0           1      1        ?  ?      ?
a note

every rank:
  HCCL_SECRET=***
  HF_TOKEN=***
  PGPASSWORD=***
  TOKENIZERS_PARALLELISM=false
  https_proxy=***
  $ python train.py --name 'two words'
rank 0:
  RANK=0
rank 1:
  PORT=<chosen at start>
  RANK=1
"""
    )


def test_long_hosts_and_lists_fit_100_columns() -> None:
    place = Place(tuple(range(0, 256, 2)), (0, 2), 128, is_bound=True)
    rank = PlannedRank("h" * 60, 1023, 0, 4095, place, {}, COMMAND)
    table = render([rank]).partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 100
    listed = "".join(line.split()[-1] for line in table[1:])
    assert listed == ",".join(map(str, range(0, 256, 2)))
