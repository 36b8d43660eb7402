"""How many Python frames a call makes, torch's and ours; and the table of docs/tables/torch.md.

python tests/torch_backend/harness/frames.py       # counts, and writes
"""

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))

import harness_path  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from feature_rows import PAGE  # noqa: E402
from ranks import run_ranks  # noqa: E402

BEGIN, END = "<!-- written by frames.py -->", "<!-- end of the frames -->"
_OURS = re.compile(r"hccl_py\.|namedtuple_")
"""Modules; a named tuple is made in one of its own."""
_ROW = re.compile(r"^\| `(?P<call>.+)` \| (?P<torch>\d+) \| (?P<ours>\d+) \|$", re.MULTILINE)
_VERSION = re.compile(r"Python frames of torch (\d+\.\d+\.\d+)")


class Frames(NamedTuple):
    """Python frames of one call: of torch, the standard library included, and of hccl-py."""

    torch: int
    ours: int


def calls(rank: int, n: int) -> dict[str, Callable[[], Any]]:
    """Return every call by what the table shows; all ranks make them in this order."""
    one, all_of, part = torch.ones(1), torch.ones(n), torch.ones(1)
    return {
        "all_reduce(t)": lambda: dist.all_reduce(one),
        "broadcast(t, 0)": lambda: dist.broadcast(one, 0),
        "reduce(t, 0)": lambda: dist.reduce(one, 0),
        "all_gather_single(out, t)": lambda: dist.all_gather_single(all_of, part),
        "all_gather_into_tensor(out, t)": lambda: dist.all_gather_into_tensor(all_of, part),
        "reduce_scatter_single(out, t)": lambda: dist.reduce_scatter_single(part, all_of),
        "reduce_scatter_tensor(out, t)": lambda: dist.reduce_scatter_tensor(part, all_of),
        "all_to_all_single(out, t)": lambda: dist.all_to_all_single(torch.empty(n), all_of),
        "barrier()": lambda: dist.barrier(),
        "send(t, 1)": lambda: dist.send(one, 1) if rank == 0 else dist.recv(one, 0),
        "recv(t, 1)": lambda: dist.recv(one, 1) if rank == 0 else dist.send(one, 0),
        "all_reduce(t, async_op=True).wait()": lambda: _wait(dist.all_reduce(one, async_op=True)),
    }


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


def count(call: Callable[[], Any]) -> Frames:
    """Count the frames that a call makes on this thread, itself not included."""
    modules: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            modules.append(frame.f_globals.get("__name__", ""))

    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    inside = [name for name in modules if name != __name__]
    ours = sum(bool(_OURS.match(name)) for name in inside)
    return Frames(len(inside) - ours, ours)


def count_all(rank: int, world_size: int) -> dict[str, tuple[int, ...]]:
    """Count each call, of several tries the smallest; the first loads what is loaded lazily."""
    found = {}
    for name, call in calls(rank, world_size).items():
        call()
        found[name] = tuple(min(count(call) for _ in range(3)))
    return found


def counted() -> dict[str, Frames]:
    """Return what rank 0 of two makes."""
    found = run_ranks(count_all, 2, backend="hccl")[0]
    return {name: Frames(*numbers) for name, numbers in found.items()}


def documented() -> tuple[str, dict[str, Frames]]:
    """Return what the page says: of which torch, and the frames by call."""
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    version = _VERSION.search(text)
    rows = {row["call"]: Frames(int(row["torch"]), int(row["ours"])) for row in _ROW.finditer(text)}
    return version[1] if version else "", rows


def torch_version() -> str:
    """Return it without what says how it was built."""
    return torch.__version__.partition("+")[0]


def write() -> None:
    """Count, print and write the page's part."""
    rows = [f"| `{name}` | {one.torch} | {one.ours} |" for name, one in counted().items()]
    head = f"| Python frames of torch {torch_version()} | torch's | ours |\n|---|--:|--:|"
    text = "\n".join((head, *rows))
    print(text)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
