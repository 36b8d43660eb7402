"""Times for a page: what messages take by some costs, and what a job's ranks recorded."""

from pathlib import Path
from typing import Any, NamedTuple

from hccl_py.algorithms.cost import share_of
from hccl_py.lab.simulation.costs import Costs
from hccl_py.observe.trace.clocks import offsets
from hccl_py.observe.trace.files import TraceError
from hccl_py.observe.trace.files import read as read_traces
from hccl_py.plan.history import Duration
from hccl_py.plan.language import Nodes, Op, OpKind, Plan
from hccl_py.transport.errors import InvalidArgumentError

_MIB = 1 << 20


class Measured(NamedTuple):
    """A call as all ranks recorded it; times in us from when the first rank began."""

    number: int
    num_bytes: int
    end: float
    ranks: list[dict[str, float] | None]  # None: there is no file of this rank


def durations(costs: Costs, num_bytes: int, nodes: Nodes) -> Duration:
    """Return what each message and each reduction takes alone, in us, in a call of `num_bytes`."""
    node_of = {rank: index for index, node in enumerate(nodes) for rank in node}

    def duration(plan: Plan, op: Op, peer: int | None) -> float:
        mib = share_of(plan, op.src or op.dst) * num_bytes / _MIB
        if peer is None:
            if op.kind is not OpKind.RECV_REDUCE:
                return costs.reduce_us_per_mib * mib * (op.kind is OpKind.COPY)
            return (costs.reduce_us_per_mib * len(op.peers) + costs.result_us_per_mib) * mib
        is_near = node_of[peer] == node_of[plan.rank]
        link = costs.scale_up if is_near else costs.scale_out
        ends_us = 2 * (link.message_us + link.us_per_mib * mib)  # the sender's and the receiver's
        return link.latency_us + ends_us + link.wire_us_per_mib * mib

    return duration


def measured(folder: Path, collective: str, n: int, number: int | None) -> Measured:
    """Find a call among n ranks in the flight recorders of a folder: the last one, or by number.

    Raise InvalidArgumentError if there is none that ended on all ranks whose files are there.
    """
    try:
        files = read_traces([folder])
        apart = offsets(files)
    except TraceError as error:
        raise InvalidArgumentError(f"--trace: {error}") from error
    calls: dict[tuple[str, int], dict[int, tuple[int, dict[str, Any]]]] = {}
    for file, offset in zip(files, apart, strict=True):
        by_name = {one["name"]: one for one in file.content["communicators"]}
        for entry in file.content["entries"]:
            one = by_name[entry["process_group"][0]]
            is_it = entry["profiling_name"] == f"hccl:{collective}" and one["world_size"] == n
            if is_it and entry["time_discovered_completed_ns"]:
                key = one["id"], entry["collective_seq_id"]
                calls.setdefault(key, {})[one["rank"]] = offset.offset_ns, entry
    most = max(map(len, calls.values()), default=0)
    found = [
        (key[1], ranks)
        for key, ranks in calls.items()
        if len(ranks) == most and number in (None, key[1])
    ]
    if not found:
        wanted = collective if number is None else f"{collective} number {number}"
        raise InvalidArgumentError(
            f"--trace: expected a finished {wanted} among {n} ranks in {folder}; there is none"
        )
    last, ranks = max(found, key=lambda one: one[0])
    times = {rank: _times(*ranks[rank]) for rank in ranks}
    begin = min(one[0] for one in times.values())
    spans: list[dict[str, float] | None] = [None] * n
    for rank, (began, waited, ended) in times.items():
        named = {"begin": began, "waited": waited, "end": ended}
        spans[rank] = {key: (ns - begin) / 1000 for key, ns in named.items()}
    _, entry = next(iter(ranks.values()))
    num_bytes = max(entry["bytes_in"], entry["bytes_out"])
    return Measured(last, num_bytes, max(one["end"] for one in spans if one), spans)


def _times(offset_ns: int, entry: dict[str, Any]) -> tuple[int, int, int]:
    began = entry["time_discovered_started_ns"] or entry["time_created_ns"]
    ended = entry["time_discovered_completed_ns"]
    waited = min(max(entry["waited_until_ns"], began), ended)
    return began + offset_ns, waited + offset_ns, ended + offset_ns
