"""The lines at the end of an emulated job."""

from __future__ import annotations

from collections.abc import Iterator

from hccl_py.lab.emulation.cluster import Cluster
from hccl_py.lab.emulation.forecast import forecasts
from hccl_py.lab.emulation.steps import Steps


def lines(cluster: Cluster, ranks_per_node: int, steps: Steps | None) -> Iterator[str]:
    """Say what the network cost per step, and what more nodes would make of it."""
    rate = f"{cluster.card.bytes_per_s * 8e-6:g} Mbit/s, {cluster.latency_s * 1e6:g} us"
    number = len(cluster.links)
    links = f", {number} slower link{'s' * (number > 1)}" * bool(number)
    yield f"emulated network: {cluster.num_nodes} nodes of {ranks_per_node}, {rate}{links}"
    if steps is None:
        yield "  no call between nodes was recorded, so there is nothing to say of the network"
        return
    if steps.num_steps:
        what, share = "a step", f", {100 * steps.network_ms / steps.step_ms:.0f} % of it"
        yield f"  {steps.num_steps} steps were measured, of {_ms(steps.step_ms)} (median)"
        if steps.num_left_out:
            yield f"  {steps.num_left_out} more were not: not all ranks reported their calls"
    elif steps.num_left_out:
        what, share = "the job", ""
        yield "  too few steps were measured, as not all ranks reported their calls (one that is"
        yield "  killed lacks up to its last 0.5 s): all reported calls are one step"
    else:
        what, share = "the job", ""
        yield "  fewer than two steps of a torch optimizer were counted: all calls are one step"
    yield f"  the network took {_ms(steps.network_ms)} of {what}{share}"
    if steps.wire is not None:
        wire = steps.wire
        busy = f"{wire.num_bytes / 1e6:.3g} MB, {_ms(wire.busy_ms)} of {what}"
        yield f"  the busiest wire was {wire.name}: {busy}"
    if steps.calls:
        yield from _forecast_lines(cluster, ranks_per_node, steps, what)
    if steps.num_transfers:
        yield f"  not simulated: {steps.num_transfers:.3g} sends of {what} to other nodes"


def _forecast_lines(
    cluster: Cluster, ranks_per_node: int, steps: Steps, what: str
) -> Iterator[str]:
    number = sum(steps.calls.values())
    yield f"  the {number:.3g} collectives of {what} took {_ms(steps.calls_ms)}; as simulated:"
    yield f"  {'nodes':>7}  {'ranks':>7}  {'collectives':>12}"
    for one in forecasts(cluster, ranks_per_node, steps.calls):
        left_out = f"  ({one.num_left_out} kinds left out)" * bool(one.num_left_out)
        ms = "-" if one.ms is None else _ms(one.ms)
        yield f"  {one.num_nodes:7}  {one.num_ranks:7}  {ms:>12}{left_out}"


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 1000 else f"{value:.3g} ms"
