"""Messages and work of each rank with their dependencies, as GOAL or Chakra traces.

GOAL is the language of LogGOPSim and ATLAHS: a text with all ranks. Chakra execution traces, which
ASTRA-sim reads, are a file for each rank: messages of Protocol Buffers, each after its length. Only
the few fields are written that are needed, by their numbers in Chakra's `et_def.proto`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from hccl_py.algorithms.choice.cost import share_of
from hccl_py.plan.language import OpKind, Plan

_MIB = 1 << 20
_COMPUTE, _SEND, _RECV, _COLLECTIVE = 4, 5, 6, 7  # types of Chakra's nodes
_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "", "barrier"),
)
"""By number, those of Chakra."""


class Step(NamedTuple):
    """A part of a rank's schedule; `needs`: the steps that must have ended."""

    kind: str  # send, recv, calc, or the name of a collective
    peer: int = -1
    num_bytes: int = 0
    tag: int = 0
    us: float = 0.0
    needs: tuple[int, ...] = ()


@dataclass
class Schedule:
    """The steps of a rank."""

    rank: int
    steps: list[Step] = field(default_factory=list)
    last: tuple[int, ...] = ()  # what the next step waits for
    _tags: Counter[tuple[int, int]] = field(default_factory=Counter)

    def wait(self, us: float) -> None:
        """Add work of the rank."""
        if us > 0:
            self._end(Step("calc", us=us, needs=self.last))

    def call(self, collective: str, num_bytes: int) -> None:
        """Add a collective as a whole."""
        self._end(Step(collective, num_bytes=num_bytes, needs=self.last))

    def run(self, plan: Plan, num_bytes: int, reduce_us_per_mib: float) -> None:
        """Add the ops of a plan. A send goes on in the background, as in the engine."""
        for op in plan.ops:
            size = ceil(share_of(plan, op.src or op.dst) * num_bytes)
            received = list[int]()
            for peer in op.peers:
                is_send = op.kind is OpKind.SEND
                pair = (self.rank, peer) if is_send else (peer, self.rank)
                kind = "send" if is_send else "recv"
                self.steps.append(Step(kind, peer, size, self._tags[pair], needs=self.last))
                self._tags[pair] += 1
                received += [] if is_send else [len(self.steps) - 1]
            if received:
                self.last = tuple(received)
            if op.kind in (OpKind.RECV_REDUCE, OpKind.COPY):
                self.wait(reduce_us_per_mib * size / _MIB * max(1, len(op.peers)))

    def _end(self, step: Step) -> None:
        self.steps.append(step)
        self.last = (len(self.steps) - 1,)


def goal(schedules: Sequence[Schedule]) -> str:
    """Return the schedules as GOAL; work is in nanoseconds."""
    return "".join(_goal(schedules))


def _goal(schedules: Sequence[Schedule]) -> Iterator[str]:
    yield f"num_ranks {len(schedules)}\n"
    for one in schedules:
        yield f"\nrank {one.rank} {{\n"
        for at, step in enumerate(one.steps):
            if step.kind == "calc":
                text = f"calc {round(step.us * 1e3)}"
            else:
                way = "to" if step.kind == "send" else "from"
                text = f"{step.kind} {step.num_bytes}b {way} {step.peer} tag {step.tag}"
            yield f"l{at}: {text}\n"
            yield from (f"l{at} requires l{need}\n" for need in step.needs)
        yield "}\n"


def chakra(schedule: Schedule) -> bytes:
    """Return the trace of a rank."""
    nodes = [_field(1, "0.0.4")]
    for at, step in enumerate(schedule.steps):
        kinds = {"send": _SEND, "recv": _RECV, "calc": _COMPUTE}
        node = _field(1, at) + _field(2, f"{step.kind}_{at}")
        node += _field(3, kinds.get(step.kind, _COLLECTIVE))
        node += b"".join(_field(5, need) for need in step.needs)
        attributes: dict[str, int | bool] = {"is_cpu_op": False}
        if step.kind == "calc":
            node += _field(7, ceil(step.us))
        elif step.kind in kinds:
            src, dst = schedule.rank, step.peer
            src, dst = (src, dst) if step.kind == "send" else (dst, src)
            attributes |= {"comm_src": src, "comm_dst": dst, "comm_tag": step.tag}
        else:
            attributes["comm_type"] = _COLLECTIVES.index(step.kind)
        if step.kind != "calc":
            attributes["comm_size"] = step.num_bytes
        nodes.append(node + b"".join(_field(10, one) for one in _attributes(attributes)))
    return b"".join(_varint(len(one)) + one for one in nodes)


def _attributes(values: Mapping[str, int | bool]) -> Iterator[bytes]:
    for name, value in values.items():
        number = 27 if isinstance(value, bool) else 7 if name in _SMALL else 9
        yield _field(1, name) + _varint(number << 3) + _varint(int(value))


_SMALL = ("comm_src", "comm_dst", "comm_tag")
"""Attributes of 32 bits."""


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
