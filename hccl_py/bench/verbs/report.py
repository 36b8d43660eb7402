"""The tables of hccl-perftest: columns of ib_write_bw and ib_send_lat, then the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

_MIB = 1 << 20
"""What perftest calls MB."""

_BANDWIDTH = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
_LATENCY = (
    " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
    "    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
)
_COMPARISON = "    {peer}[{unit}]   ratio   spread"


@dataclass(frozen=True)
class Row:
    """One size, measured.

    Attributes:
        num_bytes: of a message.
        iterations: messages of a round.
        ours: per round: latency: microseconds of each message; bandwidth: [seconds for all].
        theirs: the same of the peer; empty without one.
    """

    num_bytes: int
    iterations: int
    ours: list[list[float]]
    theirs: list[list[float]]


class Report:
    """Renders rows."""

    def __init__(self, device: str, op: str, *, latency: bool, rounds: int) -> None:
        """Take down what is measured."""
        self._device, self._op, self._latency, self._rounds = device, op, latency, rounds

    def header(self, peer: str | None) -> list[str]:
        """Render what stands above the rows."""
        kind = "Latency" if self._latency else "BW"
        columns = _LATENCY if self._latency else _BANDWIDTH
        if peer is not None:
            columns += _COMPARISON.format(peer=peer, unit="usec" if self._latency else "MB/sec")
        rule = "-" * len(columns)
        name = "Send" if self._op == "send" else f"RDMA_{self._op.title()}"
        title = f"{name} {kind} Test"
        rounds = f" Rounds: {self._rounds}, medians; peak and min/max over all; MB = 2^20 bytes"
        return [rule, f"{title:^{len(columns)}}", f" Device: {self._device}", rounds, rule, columns]

    def row(self, row: Row) -> str:
        """Render one size."""
        return self._latency_row(row) if self._latency else self._bandwidth_row(row)

    def _bandwidth_row(self, row: Row) -> str:
        ours = _rates(row, row.ours)
        average = median(ours)
        text = f" {row.num_bytes:<10} {row.iterations:<14} {max(ours):<18.2f} {average:<20.2f} "
        text += f"{average * _MIB / max(row.num_bytes, 1) / 1e6:<13.6f}"
        if row.theirs:
            theirs = _rates(row, row.theirs)
            text += _comparison(ours, theirs, average / median(theirs))
        return text

    def _latency_row(self, row: Row) -> str:
        every = sorted(time for times in row.ours for time in times)
        ours = [median(times) for times in row.ours]
        text = (
            f" {row.num_bytes:<10} {row.iterations:<14} {every[0]:<14.2f} {every[-1]:<13.2f} "
            f"{median(ours):<18.2f} {fmean(every):<14.2f} {float(np.std(every)):<16.2f}"
            f"{_quantile(every, 0.99):<23.2f}{_quantile(every, 0.999):<22.2f}"
        )
        if row.theirs:
            theirs = [median(times) for times in row.theirs]
            text += _comparison(ours, theirs, median(ours) / median(theirs))
        return text


def _rates(row: Row, rounds: list[list[float]]) -> list[float]:
    return [row.num_bytes * row.iterations / times[0] / _MIB for times in rounds]


def _comparison(ours: Sequence[float], theirs: Sequence[float], ratio: float) -> str:
    spread = "/".join(f"{_digits(min(side))}-{_digits(max(side))}" for side in (ours, theirs))
    return f"    {median(theirs):<12.2f} {ratio:<7.3f} {spread}"


def _quantile(every: Sequence[float], fraction: float) -> float:
    return every[min(len(every) - 1, int(len(every) * fraction))]


def _digits(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"
