"""`hccl-plan import`: plans of another program as a plan file, proved."""

import argparse
from pathlib import Path

from hccl_py.algorithms.custom import PLANS
from hccl_py.algorithms.plan_file import loaded_plans, write_plans
from hccl_py.command_line import wrapped
from hccl_py.lab.algorithms import nodes_of
from hccl_py.lab.interchange import msccl

EPILOG = """\
examples:
  hccl-plan import ring.xml -o ring.json
  hccl-plan draw plan:ring.json
  HCCL_ALGORITHM=all_reduce=plan:ring.json hccl-launch ..."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="MSCCL's XML")
    about = "write this plan file (FILE.json)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=about)


def run(given: argparse.Namespace) -> int:
    """Write the plan file if the proof accepts the plans; return 0."""
    plans = msccl.read(given.file)
    path = given.output or given.file.with_suffix(".json")
    draft = path.with_name(path.name + ".unproved")
    try:
        write_plans(draft, {None: plans}, f"imported from {given.file.name}")
        algorithm = loaded_plans(f"{PLANS}{draft}")
        algorithm.verify(nodes_of([len(plans)]))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    print(wrapped(f"{path}: {algorithm.collective} of {len(plans)} ranks, which is right"))
    print(wrapped(f"run it with HCCL_ALGORITHM={algorithm.collective}={PLANS}{path}"))
    return 0
