"""`hccl-bench --validate`, on ranks of its own or as a rank of a launcher's job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hccl_py.bench.collective.analysis.trust import Load, load_doubts
from hccl_py.bench.collective.analysis.validate import Asked, Validation, Validator
from hccl_py.bench.collective.contenders import Api
from hccl_py.bench.collective.job_ranks import JobRanks, rank_of_job
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output import matrix
from hccl_py.bench.collective.output.document import facts, write
from hccl_py.bench.collective.output.live import Lines
from hccl_py.bench.collective.output.table import introduction
from hccl_py.bench.collective.ranks import Ranks, open_hosts
from hccl_py.bench.namespaces import Hosts
from hccl_py.transport.errors import InvalidArgumentError


@dataclass(frozen=True)
class _Where:
    """By rank: the node, what names its host, and on this machine the process."""

    nodes: Sequence[int]
    hosts: Sequence[str]
    pids: Sequence[int]


def validate(options: Options, command: str, hosts: Hosts | None = None) -> int:
    """Measure every pair of ranks and show the matrix.

    Args:
        options: which ranks; the last of its sizes is that of the messages.
        command: the command line, for the record.
        hosts: where the nodes are; None: as the options say.

    Returns:
        The exit code: 0, or 1 where a link is slow.
    """
    Lines().lines(introduction([options], command, facts(), ["hccl"])[:3])
    with ExitStack() as opened:
        hosts = hosts or open_hosts(options, opened)
        ranks = opened.enter_context(Ranks(options, [Api(options.api)], hosts))
        addresses = [f", {hosts.address(node)}" if hosts else "" for node in options.nodes]
        where = _Where(options.nodes, addresses, ranks.pids)
        found = _measure(ranks, options, where)
    return _show(options, command, where, *found)


def validate_job(options: Options, command: str) -> int:
    """Measure every pair of ranks of the job that this process is in; rank 0 shows the matrix.

    Returns:
        The exit code: 0, or 1 on rank 0 where a link is slow.
    """
    with rank_of_job() as rank:
        ranks = JobRanks(rank)
        if ranks.communicator.world_size < 2:
            raise InvalidArgumentError("--validate needs at least 2 ranks: start a larger job")
        where = _Where(ranks.nodes, [f", {name}" for name in ranks.names()], [os.getpid()])
        found = _measure(ranks, options, where)
    return 0 if rank.rank else _show(options, command, where, *found)


def _measure(ranks: Asked, options: Options, where: _Where) -> tuple[Validation, list[str]]:
    """Return all links, and why they cannot be trusted."""
    before = Load.now(where.pids)
    found = Validator(ranks, where.nodes, options.sizes[-1]).run()
    return found, load_doubts(before, Load.now(where.pids))


def _show(
    options: Options, command: str, where: _Where, found: Validation, doubts: Sequence[str]
) -> int:
    """Print the matrix and write the files that were asked for; return the exit code."""

    def name(rank: int) -> str:
        return f"rank {rank} (node {where.nodes[rank]}{where.hosts[rank]})"

    n, num_nodes, about = len(where.nodes), len(set(where.nodes)), facts()
    Lines().lines(matrix.text(found, n, name))
    Lines().lines([f"# doubtful: {doubt}" for doubt in doubts])
    if options.json_path:
        written = {"command": command, **about, "doubts": doubts}
        write(options.json_path, written | matrix.document(found))
    if options.plot_path:
        nodes = "1 node" if num_nodes == 1 else f"{num_nodes} nodes"
        title = f"links between {n} ranks on {nodes}, {about['machine']['cpu']}"
        matrix.plot(found, n, title, options.plot_path)
    for slow in found.slow:
        print(f"hccl-bench: {matrix.describe(slow, name)}", file=sys.stderr)
    return 1 if found.slow else 0
