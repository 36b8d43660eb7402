"""The tables of hccl-perftest: columns of ib_write_bw and ib_send_lat, then the comparison."""

from collections.abc import Sequence
from statistics import median

import numpy as np

_MIB = 1 << 20
"""The MB of perftest."""

_BANDWIDTH = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
_LATENCY = (
    " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
    "    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
)

Rounds = Sequence[Sequence[float]]
"""For latency the microseconds of each message, for bandwidth [seconds for all messages]."""


def header(device: str, op: str, latency: bool, rounds: int, peer: str | None) -> list[str]:
    """Render the header of the rows."""
    columns = _LATENCY if latency else _BANDWIDTH
    if peer is not None:
        columns += f"    {peer}[{'usec' if latency else 'MB/sec'}]   ratio   spread"
    rule = "-" * len(columns)
    is_rdma = device.partition(":")[0] == "verbs"
    name = f"{'RDMA_' * (is_rdma and op != 'send')}{op.title()}"
    title = f"{name} {'Latency' if latency else 'BW'}"
    device += "" if is_rdma else " (queue pair in software, no RDMA device)"
    how = f" Rounds: {rounds}, medians; peak and min/max over all; MB = 2^20 bytes"
    return [rule, f"{title + ' Test':^{len(columns)}}", f" Device: {device}", how, rule, columns]


def latency_row(num_bytes: int, ours_us: Rounds, theirs_us: Rounds) -> str:
    """Render one size; `theirs_us` is empty without a comparison."""
    every = np.concatenate(ours_us)
    ours, theirs = ([median(times) for times in side] for side in (ours_us, theirs_us))
    tail = np.percentile(every, (99, 99.9), method="higher")
    shown = every.min(), every.max(), median(ours), every.mean(), every.std(), *tail
    widths = 14, 13, 18, 14, 15, 22, 22
    cells = " ".join(f"{value:<{width}.2f}" for value, width in zip(shown, widths, strict=True))
    return f" {num_bytes:<10} {len(ours_us[0]):<14} {cells}{_comparison(ours, theirs)}"


def bandwidth_row(num_bytes: int, iterations: int, ours_s: Rounds, theirs_s: Rounds) -> str:
    """Render one size; `theirs_s` is empty without a comparison."""
    total = num_bytes * iterations / _MIB
    ours, theirs = ([total / seconds for (seconds,) in side] for side in (ours_s, theirs_s))
    rate = median(ours) * _MIB / max(num_bytes, 1) / 1e6
    cells = f"{max(ours):<18.2f} {median(ours):<19.2f} {rate:<13.6f}"
    return f" {num_bytes:<10} {iterations:<14} {cells}{_comparison(ours, theirs)}"


def _comparison(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if not theirs:
        return ""
    spread = "/".join(f"{_digits(min(it))}-{_digits(max(it))}" for it in (ours, theirs))
    return f"    {median(theirs):<12.2f} {median(ours) / median(theirs):<7.3f} {spread}"


def _digits(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"
