"""Plans in a file: `all_reduce=plan:FILE` runs the ops that are written there.

`hccl-plan synthesize` writes such files; other programs may. A file is JSON: `format`, `version`,
`collective`, `world_size`, `data_chunks` (0 for a collective on blocks), `block_parts` (chunks of
each block, 1 if it is not given), `equal_blocks` (true if it relies on blocks of one length),
`about` (for people) and `plans`, one for each root (`null` without roots): `root`, and `ops`, for
each rank the lines that `hccl-plan show` prints, with `end_step` where a step ends. It counts as a
user's algorithm: the ranks prove it before their first call, and all must have the same file.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from hccl_py.algorithms.custom import PLANS, CustomAlgorithm
from hccl_py.algorithms.json_file import read_json
from hccl_py.algorithms.table import Algorithm
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Op, OpKind, Plan, PlanBuilder
from hccl_py.plan.limits import MOST_CHUNKS, MOST_RANKS
from hccl_py.plan.parse import parse_op
from hccl_py.transport.errors import InvalidArgumentError

_FORMAT, _VERSION, _END_STEP = "hccl-plan", 1, "end_step"

_Ops = dict[int | None, list[list[Op | None]]]
"""By root and rank; None ends a step."""

_KEYS = ("collective", "world_size", "data_chunks", "block_parts", "about", "equal_blocks")

PlansOfRoots = Mapping[int | None, Sequence[Plan]]
"""By root (None: the collective has none), the plans of all ranks."""


def write_plans(path: Path, plans: PlansOfRoots, about: str, *, equal_blocks: bool = False) -> None:
    """Write plans of one collective among the same ranks; `about` describes them.

    Raise OSError: the file cannot be written.
    """
    first = next(iter(plans.values()))[0]
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "collective": first.collective,
        "world_size": first.world_size,
        "data_chunks": first.shape.data_chunks,
        "block_parts": first.shape.block_parts,
        "about": about,
        **({"equal_blocks": True} if equal_blocks else {}),
        "plans": [
            {"root": root, "ops": [_lines(plan) for plan in ranks]} for root, ranks in plans.items()
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _lines(plan: Plan) -> list[str]:
    lines: list[str] = []
    for begin, end in pairwise((0, *plan.steps, len(plan.ops))):
        lines += [*map(str, plan.ops[begin:end]), _END_STEP]
    return lines[:-1]  # the last one ends the plan


def loaded_plans(place: str) -> CustomAlgorithm:
    """Return the algorithm in the file `plan:FILE`.

    Raise InvalidArgumentError: it cannot be read, or is malformed.
    """
    return _algorithm_of(Path(place.removeprefix(PLANS)).resolve())


@lru_cache
def _algorithm_of(path: Path) -> CustomAlgorithm:
    document = read_json(path, PLANS)
    try:
        return _algorithm(document, f"{PLANS}{path.name}")
    except ValueError as error:
        raise InvalidArgumentError(f"{PLANS}{path}: {error}") from error


def _algorithm(document: Any, name: str) -> CustomAlgorithm:
    """Make the algorithm; ValueError: the document is malformed."""
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f'expected "format": "{_FORMAT}", as hccl-plan synthesize writes it')
    if document.get("version") != _VERSION:
        raise ValueError(
            f"expected version {_VERSION}, got {document.get('version')!r}: write it again with "
            "this version of hccl-py"
        )
    values: dict[str, Any] = dict.fromkeys(_KEYS) | {"block_parts": 1} | document
    collective, n, chunks, parts, about, equal = (values[key] for key in _KEYS)
    known = tuple(COLLECTIVES)
    _require(collective in known, "collective", f"one of {', '.join(known)}", collective)
    for what, value, least, most in (
        ("world_size", n, 1, MOST_RANKS),
        ("data_chunks", chunks, 0, MOST_CHUNKS),
        ("block_parts", parts, 1, MOST_CHUNKS),
    ):
        good = type(value) is int and least <= value <= most
        _require(good, what, f"a number from {least} to {most}", value)
    _require(isinstance(about, str), "about", "text", about)
    _require(equal is None or type(equal) is bool, "equal_blocks", "true or false", equal)
    contract = COLLECTIVES[collective]
    on_data = contract.blocks is None
    _require(bool(chunks) == on_data, "data_chunks", "1 or more" if on_data else "0", chunks)
    _require(parts == 1 or not on_data, "block_parts", "1 without blocks", parts)
    roots = range(n) if contract.rooted else [None]
    ops = _ops(document.get("plans"), list(roots), n)

    def write(me: int, _: int, plan: PlanBuilder) -> None:
        for op in ops[plan.root if contract.rooted else None][me]:
            if op is None:
                plan.end_step()
            else:
                _append(plan, op)

    entry = Algorithm(write, lambda _nodes: chunks or parts, equal_blocks=bool(equal))
    return CustomAlgorithm(collective, name, entry, about, 0, None, None, n)


def _ops(plans: Any, roots: list[int | None], n: int) -> _Ops:
    _require(isinstance(plans, list), "plans", "a list", plans)
    _require(all(isinstance(one, dict) for one in plans), "plans", "objects", plans)
    got = [one.get("root") for one in plans]
    _require(got == roots, "plans", f"the roots {roots}, in order", got)
    found: _Ops = {}
    for root, one in zip(roots, plans, strict=True):
        where, ranks = f"root {root}" if len(roots) > 1 else "plans", one.get("ops")
        good = isinstance(ranks, list) and len(ranks) == n
        good = good and all(isinstance(lines, list) for lines in ranks)
        _require(good, where, f"ops of {n} ranks, a list each", ranks)
        found[root] = [
            [_op(line, f"{where}, rank {rank}, op {at}") for at, line in enumerate(lines)]
            for rank, lines in enumerate(ranks)
        ]
    return found


def _op(line: Any, where: str) -> Op | None:
    if line == _END_STEP:
        return None
    try:
        op = parse_op(line if isinstance(line, str) else repr(line))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    _require(not op.compressed, where, "no compressed peer", line)
    _require(op.kind is not OpKind.RECV or len(op.peers) == 1, where, "one peer of a recv", line)
    return op


def _append(plan: PlanBuilder, op: Op) -> None:
    if op.src is not None and op.dst is not None:
        plan.copy(op.dst, op.src)
    elif op.src is not None:
        plan.send(op.peers, op.src)
    elif op.dst is not None and op.kind is OpKind.RECV_REDUCE:
        plan.recv_reduce(op.peers, op.dst)
    elif op.dst is not None:
        plan.recv(op.peers[0], op.dst)


def _require(is_good: bool, what: str, expected: str, got: object) -> None:
    if not is_good:
        text = repr(got)
        shown = text if len(text) <= 80 else f"{text[:80]}..."
        raise ValueError(f"{what}: expected {expected}, got {shown}")
