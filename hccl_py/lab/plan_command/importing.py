"""`hccl-plan import`: plans of another program as a plan file, proved."""

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hccl_py.algorithms.custom import PLANS
from hccl_py.algorithms.json_file import read_json
from hccl_py.algorithms.plan_file import loaded_plans, write_plans
from hccl_py.command_line import parse_output, wrapped
from hccl_py.lab.algorithms import nodes_of
from hccl_py.lab.interchange import msccl, mscclpp
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Plan, PlanError
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError

EPILOG = """\
examples:
  hccl-plan import ring.xml -o ring.json               MSCCL
  hccl-plan import allreduce.json -o ours.json         MSCCL++
  hccl-plan draw plan:ours.json
  HCCL_ALGORITHM=all_reduce=plan:ours.json hccl-launch ..."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="MSCCL's XML, or MSCCL++'s JSON")
    about = "write this plan file (FILE with the ending .json, or .plan.json for JSON)"
    parser.add_argument("-o", "--output", type=parse_output, metavar="FILE", help=about)


def run(given: argparse.Namespace) -> int:
    """Write the plan file if the proof accepts the plans; return 0."""
    source: Path = given.file
    ending = ".plan.json" if source.suffix == ".json" else ".json"
    path: Path = given.output or source.with_suffix(ending)
    if path.resolve() == source.resolve():
        raise InvalidArgumentError(f"--output: expected another file than {source}")
    plans = _read(source)
    # A path of its own, because a file that was read before is not read again.
    with TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / path.name
        about = f"imported from {source.name}"
        write_plans(draft, {None: plans}, about, equal_blocks=_needs_equal_blocks(plans))
        algorithm = loaded_plans(f"{PLANS}{draft}")
        algorithm.verify(nodes_of([len(plans)]))
        draft.replace(path)
    blocks = ", for blocks of one length" * algorithm.entry.equal_blocks
    print(wrapped(f"{path}: {algorithm.collective} of {len(plans)} ranks{blocks}, which is right"))
    print(wrapped(f"run it with HCCL_ALGORITHM={algorithm.collective}={PLANS}{path}"))
    return 0


def _read(path: Path) -> tuple[Plan, ...]:
    if path.read_bytes().lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return msccl.read(path)
    document = read_json(path)
    if isinstance(document, dict) and document.get("format") == "hccl-plan":
        raise InvalidArgumentError(f"{path}: this is a plan file already: use {PLANS}{path}")
    try:
        return mscclpp.plans(document, path.name)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        what: object = f"no {error}" if isinstance(error, KeyError) else error
        if not isinstance(error, KeyError | ValueError):
            what = f"malformed: {error}"
        raise InvalidArgumentError(f"{path}: expected MSCCL++'s JSON: {what}") from error


def _needs_equal_blocks(plans: tuple[Plan, ...]) -> bool:
    """Return whether only blocks of one length make the plans right."""
    contract = COLLECTIVES[plans[0].collective]
    for is_equal in (False, True):
        try:
            verify(plans, replace(contract, equal_blocks=is_equal))
            return is_equal
        except PlanError:
            continue
    return False
