"""The plans of one communicator's calls, made at first use and kept."""

import logging
import os
import time
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from hccl_py.algorithms.choice.shared import Reproducible
from hccl_py.algorithms.choice.tuner import (
    UNKNOWN_CORES,
    VARIABLE,
    Cores,
    choose,
    min_message_bytes,
    size_class,
)
from hccl_py.algorithms.choice.tuning import Tuning
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import ALGORITHMS, Algorithm, verify_algorithm, write_plan
from hccl_py.compression import is_compressible
from hccl_py.fingerprint import REDUCING, pack
from hccl_py.memory.arguments import check_op
from hccl_py.memory.element_types import BYTES, ELEMENT_TYPES, ElementType
from hccl_py.plan.compress import compress_scale_out
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes, Plan
from hccl_py.plan.lower import lower
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import EXACT, IN_ONE_STEP, Compression, DType, ReduceOp

if TYPE_CHECKING:
    from hccl_py.algorithms.custom import CustomAlgorithm

logger = logging.getLogger("hccl_py")

_USUAL_COUNTS = tuple(1 << i for i in range(32))
_MAX_BYTES = 1 << 63
_AHEAD_S = 0.005
"""Time for plans that may never be used; those of the largest jobs take longer."""

_Key = tuple[str, int | None, bool, bool, bool]
"""Collective, root, whether in one step, whether compressed, whether blocks are even."""


class PlanCache(_core.PlanCache):
    """Chooses, writes, lowers and keeps plans.

    `find` of the base class, also used by calls made in C++, takes the collective's name; the
    caller's ElementType; a ReduceOp; the total number of elements, equal on all ranks (0 if not
    known); the root, if there is one; whether all blocks have one length; and the Compression, if
    it is not the communicator's. It returns a Prepared.
    """

    def __init__(
        self,
        rank: int,
        nodes: Nodes,
        tuning: Tuning | None = None,
        *,
        compression: Compression = Compression.NONE,
        reproducible: Reproducible = False,
        cores: Cores = UNKNOWN_CORES,
    ) -> None:
        """Start empty. `HCCL_VERIFY=1` proves every plan before its first use.

        `tuning` is rank 0's. `compression` is the default of compressible calls. `reproducible`:
        results are reduced in rank order, for all sizes and nodes; "exact": sums of floats are
        rounded once. `cores` is as in `choose`.
        """
        super().__init__(compression)
        self._tuning = tuning
        # As compared when the ranks connected; a later change could be on one rank only.
        self._given: Mapping[str, str] = {VARIABLE: os.environ.get(VARIABLE, "")}
        self._environ: Mapping[str, str] = self._given
        self._rank = rank
        self._nodes = nodes
        self._cores = cores
        self._compression = compression
        self._reproducible = reproducible
        self._custom: tuple[CustomAlgorithm, ...] = ()
        self._verify = os.environ.get("HCCL_VERIFY") == "1"
        self._choices: dict[tuple[_Key, int], tuple[Algorithm, _core.Plan, range]] = {}
        # One plan serves all sizes of an algorithm and root, compressed or not.
        self._plans: dict[tuple[str, Algorithm, int | None, bool], _core.Plan] = {}

    def checked(self, compression: Compression) -> Compression:
        """Return the compression of a call; raise InvalidArgumentError if it is not permitted."""
        if self._reproducible and compression is not self._compression:
            raise InvalidArgumentError(
                f"compression: expected none in a reproducible communicator, got "
                f"{compression.name.lower()}: what it rounds depends on nodes and sizes"
            )
        return compression

    def write(
        self,
        collective: str,
        kind: ElementType,
        op: int,
        count: int,
        root: int | None,
        even: bool,
        compression: int,
    ) -> _core.Prepared:
        """Prepare a call, if the ReduceOp is defined for the elements.

        The base class derives from it calls of other counts, if only numbers differ.
        """
        num_bytes = count * kind.item_bytes
        is_alone = count == 0 or kind.number == BYTES.number
        is_alone |= compression != 0 and len(self._nodes) > 1
        # The engine moves bytes, and adds complex numbers as their parts.
        dtype, engine_count = DType.UINT8, num_bytes
        if collective in REDUCING:
            check_op(op, kind)
            assert kind.part_type is not None, "nothing can be reduced that has none"
            dtype, engine_count = kind.part_type, count * kind.parts
            if self._reproducible == "exact" and kind.can_reduce(exact := EXACT.get(op, op)):
                op = exact
        reduces_in_order = bool(self._reproducible) and collective in REDUCING
        in_one_step = dtype in IN_ONE_STEP or reduces_in_order or op in EXACT.values()
        if len(self._nodes) == 1 or not is_compressible(collective, kind, op, num_bytes):
            compression = Compression.NONE
        key = (collective, root, in_one_step, compression != 0, even)
        known = self._choices.get((key, size_class(num_bytes)))
        if known is None:
            known = self._chosen(key, num_bytes, compression)
            self._choices.update(((key, size), known) for size in known[2])
        entry, plan, classes = known
        alike = (0, 0) if is_alone else _counts_of(classes, kind.item_bytes)
        if collective == "all_to_all" and not entry.equal_blocks:
            count = engine_count = 0  # equal blocks here may be uneven on another rank
        if COLLECTIVES[collective].meets:
            engine_count = 0  # messages of empty chunks are sent in a call without elements only
        fingerprint = pack(collective, compression or root, kind, op, count)
        # In a reduce only the root has a sum to divide.
        divides = op == ReduceOp.AVG and root in (None, self._rank)
        return _core.Prepared(
            plan, int(dtype), op, engine_count, fingerprint, divides, int(compression), *alike
        )

    def prepare_ahead(self) -> None:
        """Prepare usual first calls of all sizes, for as long as a start may take.

        Else each collective's first call takes as long as a hundred later ones. Choices that are
        logged are logged when they are made: at a call.
        """
        until_s = time.monotonic() + _AHEAD_S
        kind = ELEMENT_TYPES[DType.FLOAT32]
        for count, (name, contract) in product(_USUAL_COUNTS, COLLECTIVES.items()):
            if self._verify or logger.isEnabledFor(_level()) or time.monotonic() > until_s:
                return
            root = 0 if contract.rooted else None
            self.find(name, kind, ReduceOp.SUM, count, root, True, self._compression)

    def serve(self, custom: "tuple[CustomAlgorithm, ...]") -> None:
        """Use the first of these algorithms that fits a call; they are proved for these nodes."""
        self._custom = custom
        self._forget()

    def choose_by(self, environ: Mapping[str, str] | None) -> None:
        """Drop all plans and read `HCCL_ALGORITHM` from `environ`; all ranks call it.

        None: the value that the ranks compared, which alone includes users' algorithms.
        """
        self._environ = self._given if environ is None else environ
        self._forget()

    def _forget(self) -> None:
        self.clear()
        self._choices.clear()
        self._plans.clear()

    def _chosen(
        self, key: _Key, num_bytes: int, compression: int
    ) -> tuple[Algorithm, _core.Plan, range]:
        collective, root, in_one_step, compressed, even = key
        can_be_custom = self._environ is self._given and not in_one_step and not compressed
        for one in self._custom if can_be_custom else ():
            takes_blocks = even or not one.entry.equal_blocks
            if one.collective == collective and one.fits(num_bytes) and takes_blocks:
                algorithm, entry = one.name, one.entry
                why = f"your algorithm{one.cost and f', {one.cost}'}"
                break
        else:
            algorithm, why, classes = choose(
                collective,
                num_bytes,
                self._nodes,
                self._environ,
                in_one_step=in_one_step,
                equal_blocks=even,
                compressed=compressed,
                root=root,
                cores=self._cores,
                tuning=self._tuning,
            )
            entry = ALGORITHMS[collective, algorithm]
        if self._custom:  # users' limits may lie inside a class
            own = size_class(num_bytes)
            classes = range(own, own + 1)
        logger.log(
            logging.DEBUG if self._rank else _level(),
            f"rank {self._rank}: {collective} of {_sizes_of(classes)} among "
            f"{count_ranks(self._nodes)} ranks on {len(self._nodes)} node(s): {algorithm}"
            + f", {Compression(compression).name.lower()} between nodes" * compressed
            + f"; {why}",
        )
        plan = self._plans.get((collective, entry, root, compressed))
        if plan is None:
            header = Plan(collective, algorithm, self._rank, count_ranks(self._nodes), root)
            plan = self._written(entry, header, compressed)
            self._plans[collective, entry, root, compressed] = plan
        return entry, plan, classes

    def _written(self, entry: Algorithm, header: Plan, compressed: bool) -> _core.Plan:
        name = header.collective, header.algorithm
        if self._verify and name in ALGORITHMS:  # users' algorithms are already proved
            verify_algorithm(*name, self._nodes, header.root, compressed=compressed)
        plan = write_plan(entry, header, self._nodes)
        if compressed:
            plan = compress_scale_out(plan, self._nodes)
        lowered = lower(plan)
        return _core.make_plan(
            **lowered._asdict(),
            max_chunk_span=entry.max_span(self._nodes),
            min_message_bytes=min_message_bytes(self._nodes),
            long_messages=entry.long_messages(self._nodes),
            reduces=header.collective in REDUCING,
            rank=header.rank,
            world_size=header.world_size,
        )


def _counts_of(classes: range, item_bytes: int) -> tuple[int, int]:
    """Return the least and the most elements of these size classes."""
    return (1 << classes[0] >> 1) // item_bytes + 1, min(1 << classes[-1], _MAX_BYTES) // item_bytes


def _sizes_of(classes: range) -> str:
    if 1 << classes[-1] < _MAX_BYTES:
        return f"up to {1 << classes[-1]} bytes"
    return f"more than {1 << classes[0] >> 1} bytes" if classes[0] else "any size"


def _level() -> int:
    # A warning is printed even if the program has not set up logging.
    asked = os.environ.get("HCCL_DEBUG", "0") not in ("", "0")
    return logging.WARNING if asked else logging.INFO
