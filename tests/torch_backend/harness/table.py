"""The table of docs/tables/torch.md: what it has to list, and writing it.

    python tests/torch_backend/harness/table.py     # runs every check on both backends

It writes the recording `gloo.xz` too.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))

import harness_path  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from feature_rows import FEATURES, PAGE, Feature  # noqa: E402
from feature_runs import outcome_of  # noqa: E402
from features import describe, record  # noqa: E402
from ranks import load_function  # noqa: E402

BEGIN, END = "<!-- written by .ci/torch-table -->", "<!-- end of what is written -->"

SECTIONS = (
    "Reductions",
    "Moving tensors",
    "Point to point",
    "Objects",
    "Groups",
    "Coalesced calls",
    "Element types",
    "Works",
    "Functional collectives and torch.compile",
    "DistributedDataParallel",
    "Optimizers",
    "Fully sharded",
    "DTensor and tensor parallel",
    "Pipelines and ring attention",
    "Checkpoints",
    "Beside the group",
    "Accelerators and mixed backends",
)
"""In this order."""

NO_CALLS = {
    *("GroupName", "PrefixStore", "Store", "ReduceOp", "reduce_op", "group", "default_pg_timeout"),
    *("get_debug_level", "is_torchelastic_launched"),
    # Since torch 2.14, and so in no recording of gloo: `test_backend.py` calls them.
    *("gather_single", "gather_into_tensor", "get_backend_impl"),
}
"""Public names of torch.distributed that do nothing with a process group, classes left out."""


def collect() -> None:
    """Import every test file of torch_backend, which fills FEATURES."""
    for path in sorted(Path(__file__).parents[1].rglob("test_*.py")):
        load_function(str(path), "__name__")


def public_names() -> list[str]:
    """Return torch.distributed's own list."""
    return list(dist.distributed_c10d.__all__)


def uncovered() -> list[str]:
    """Return the names that no feature covers although they do something with a group."""
    covered = {name for row in FEATURES.values() for name in row.covers}
    return [
        name
        for name in public_names()
        if name not in covered | NO_CALLS
        and not inspect.isclass(getattr(dist, name, None))
        and not re.fullmatch(r"is_\w+_available", name.replace("backend", ""))
    ]


def lines() -> Iterator[str]:
    """Run everything on both backends and yield the page's part."""
    version = torch.__version__.partition("+")[0]
    yield f"The third column is what gloo of torch {version} does with the same test."
    for section in SECTIONS:
        rows = [row for row in FEATURES.values() if row.section == section]
        if rows:
            yield from ("", f"### {section}", "", "| what | test | gloo | note |")
            yield "|---|---|---|---|"
            yield from map(line, rows)


def line(row: Feature) -> str:
    """Return the row of a feature."""
    mine, gloo = outcome_of(row, "hccl"), outcome_of(row, "gloo")
    if mine.values is None:
        raise SystemExit(f"{row.test} fails on hccl: {mine.trouble}\n{mine.story}")
    print(row.test, describe(row, mine, gloo), flush=True)
    return f"| {row.name} | `{row.test}` | {describe(row, mine, gloo)} | {row.note} |"


def write() -> None:
    """Write the page's part."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    # What the page said of gloo is not to be believed while it is written.
    PAGE.write_text(f"{before}{BEGIN}\n{END}{after}", encoding="utf-8")
    collect()
    text = "\n".join(lines())
    record()
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
