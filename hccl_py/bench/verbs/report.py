"""The tables of hccl-perftest: columns of ib_write_bw and ib_send_lat, then the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

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
        """Render one size, and what it is compared with."""
        if self._latency:
            every = np.concatenate(row.ours)
            ours, theirs = ([median(times) for times in side] for side in (row.ours, row.theirs))
            tail = np.percentile(every, (99, 99.9), method="higher")
            shown = [every.min(), every.max(), median(ours), every.mean(), every.std(), *tail]
            widths = [14, 13, 18, 14, 15, 22, 22]
        else:
            ours, theirs = (_rates(row, side) for side in (row.ours, row.theirs))
            shown, widths = [max(ours), median(ours)], [18, 19]
        text = f" {row.num_bytes:<10} {row.iterations:<14} "
        text += " ".join(f"{value:<{width}.2f}" for value, width in zip(shown, widths, strict=True))
        if not self._latency:
            text += f" {median(ours) * _MIB / max(row.num_bytes, 1) / 1e6:<13.6f}"
        if theirs:
            spread = "/".join(f"{_digits(min(it))}-{_digits(max(it))}" for it in (ours, theirs))
            text += f"    {median(theirs):<12.2f} {median(ours) / median(theirs):<7.3f} {spread}"
        return text


def _rates(row: Row, rounds: list[list[float]]) -> list[float]:
    return [row.num_bytes * row.iterations / times[0] / _MIB for times in rounds]


def _digits(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"
