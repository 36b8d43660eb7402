"""Running features on a backend: checks of one file share the processes, each has its own group."""

import faulthandler
import importlib
import os
import pickle
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from feature_rows import FEATURES, Feature, documented
from ranks import RanksFailed, load_function, run_ranks

HCCL_LIMIT_S = 100.0
"""For one check; it may share its two cores with other programs."""
GLOO_LIMIT_S = 20.0
"""Who takes longer hangs. The group's own timeout is longer, so that it is told apart."""
HOPELESS = "hangs", "crashes"
"""What takes long to find out; believed if the page says so."""


@dataclass(frozen=True)
class Outcome:
    """What the ranks returned; else what happened, for the table and with every traceback."""

    values: list[Any] | None
    trouble: str = ""
    story: str = ""


_outcomes: dict[tuple[str, str], Outcome] = {}


def outcome_of(row: Feature, backend: str) -> Outcome:
    """Return what became of a check; the first question runs the others of its batch too."""
    if (row.test, backend) not in _outcomes:
        others = [
            other
            for other in _selected or FEATURES.values()
            if other.batch == row.batch
            and other.test != row.test
            and (other.test, backend) not in _outcomes
            and not (backend == "gloo" and documented().get(other.test, "").startswith(HOPELESS))
        ]
        _run([row, *others], backend)
    return _outcomes[row.test, backend]


_selected: list[Feature] = []


def select(tests: Sequence[Any]) -> None:
    """Run only the checks among these test functions; without any, all."""
    _selected[:] = [test.feature for test in tests if hasattr(test, "feature")]


def _run(rows: Sequence[Feature], backend: str) -> None:
    """Run checks in one set of processes, and those behind a hang or a crash in another."""
    left = list(rows)
    limit_s = GLOO_LIMIT_S if backend == "gloo" else HCCL_LIMIT_S
    while left:
        size = left[0].world_size
        names = [row.check.__name__ for row in left]
        with tempfile.TemporaryDirectory(prefix="features-") as folder:
            story = ""
            try:
                run_ranks(
                    run_checks,
                    size,
                    *(folder, str(left[0].path), names, backend, limit_s),
                    timeout_s=limit_s * (len(left) + 1),
                    env=left[0].env,
                    victims=range(size) if backend == "gloo" else (),
                )
            except RanksFailed as failure:
                story = str(failure)
            found = [_read(Path(folder), index, size) for index in range(len(left))]
        # Whoever hung or crashed is gone, and what came behind it says nothing.
        ends = [index for index, (_, everyone_lives) in enumerate(found) if not everyone_lives]
        reached = 1 + (ends[0] if ends else len(left) - 1)
        if ends and ends[0] and backend == "gloo":
            # Its threads crash after checks that are over: what it is to be told of runs first.
            reached = ends[0]
        for row, (outcome, _) in zip(left[:reached], found, strict=False):
            if outcome.values is None:
                outcome = replace(outcome, story=f"{outcome.story}\n{story}")
            _outcomes[row.test, backend] = outcome
        if story and backend == "hccl" and not ends:
            # All checks returned; what failed is the end of the processes.
            _outcomes[left[-1].test, backend] = Outcome(None, "a rank did not end well", story)
        left = left[reached:]


def _read(folder: Path, index: int, size: int) -> tuple[Outcome, bool]:
    """Return what the ranks wrote of a check, and whether all of them went on after it."""
    files = [folder / f"{index}-{rank}" for rank in range(size)]
    said = [pickle.loads(file.read_bytes()) if file.exists() else ("died",) for file in files]
    kinds = [one[0] for one in said]
    if kinds == ["value"] * size:
        return Outcome([one[1] for one in said]), True
    # What is told of a check: its value, nothing, or message and traceback.
    story = "\n".join(f"--- rank {rank}: {one[0]} {one[-1]}" for rank, one in enumerate(said))
    everyone_lives = "died" not in kinds and "hung" not in kinds
    if "died" in kinds:
        return Outcome(None, "crashes", story), everyone_lives
    raised = [one[1] for one in said if one[0] == "raised"]
    if not raised:
        return Outcome(None, "hangs", story), everyone_lives
    causes = [message for message in raised if not _SECOND_HAND.search(message)]
    return Outcome(None, f"raises {_short((causes or raised)[0])}", story), everyone_lives


_SECOND_HAND = re.compile(r"(?i)connection (closed|reset)|timed? ?out|aborted|lost|uncaught")
"""What a rank says whose peer has raised."""
_NOISE = (
    (re.compile(r"(\[rank\d+\]:)?\[[^\]]*\.(cc|cpp|h):\d+\] "), ""),  # when and where in C++
    (re.compile(r"(?s)\n.*"), ""),
    (re.compile(r"\[?\d+\.\d+\.\d+\.\d+\]?:\d+"), "an address"),
    (re.compile(r"0x[0-9a-f]+"), "0x…"),
    (re.compile(r"\|"), "/"),
    (re.compile(r"[<>`]"), "'"),
)


def _short(message: str) -> str:
    for pattern, instead in _NOISE:
        message = pattern.sub(instead, message)
    message = message.strip()
    return message if len(message) <= 100 else f"{message[:99]}…"


def run_checks(
    rank: int, world_size: int, folder: str, path: str, names: list[str], *where: Any
) -> None:
    """Run the checks of the file `path` one after the other; write to `folder` what they return."""
    backend, limit_s = where  # and the seconds that a check may take
    _part_the_store()
    for index, name in enumerate(names):
        row: Feature = load_function(path, name).feature  # type: ignore[attr-defined]
        # A part of the store that no earlier group of this process has written to.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(index)
        file = Path(folder, f"{index}-{rank}")
        watchdog = threading.Timer(limit_s, _give_up, (file,))
        watchdog.daemon = True
        watchdog.start()
        torch.manual_seed(0)
        said: tuple[Any, ...]
        try:
            said = "value", _one(row, rank, world_size, backend, 2 * limit_s)
        except BaseException as error:
            said = "raised", f"{type(error).__name__}: {error}", traceback.format_exc()
        watchdog.cancel()
        _put(file, said)
        with suppress(Exception):  # a check that failed has left it; peers need not wait for it
            dist.destroy_process_group()


def _part_the_store() -> None:
    """Give every TORCHELASTIC_RESTART_COUNT a part of the store, as torch did before 2.13.

    A second gloo group would read the addresses of the first, which nobody listens at any more.
    """
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    whole = rendezvous._create_c10d_store

    def part(*args: Any, **options: Any) -> dist.PrefixStore:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        return dist.PrefixStore(f"attempt {attempt}", whole(*args, **options))

    rendezvous._create_c10d_store = part


def _one(row: Feature, rank: int, world_size: int, backend: str, timeout_s: float) -> Any:
    if row.own_group:
        return row.check(rank, world_size, backend)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    # Who is done at once must not be gone before its peers have connected.
    dist.barrier()
    value = row.check(rank, world_size)
    if dist.is_initialized():
        dist.destroy_process_group()
    return value


def _give_up(file: Path) -> None:
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    _put(file, ("hung", "its stacks are printed below"))
    os._exit(1)


def _put(file: Path, said: object) -> None:
    half = Path(f"{file}.half")
    half.write_bytes(pickle.dumps(said))
    half.rename(file)
