"""MSCCL++'s execution plans (JSON), read: thread blocks of each GPU, whose ops write to others.

The thread blocks run here, each until an op has to wait: for a signal, a barrier, a semaphore, the
rest of its group, or a packet. `moves.py` gets what they move. A pipeline runs once, on whole
chunks, because the engine cuts a call into tiles itself. Accesses to a chunk that nothing orders
are an error, because the plans would be right where the file is not.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hccl_py.lab.interchange.moves import Moves, Place, Value, num_chunks
from hccl_py.plan.language import Plan
from hccl_py.plan.limits import MOST_CHUNKS

NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}
_READ = {name: ours for ours, name in NAMES.items()}

_Where = tuple[int, Place]
_Chunks = list[list[_Where]]
"""Of an end of an op, the places of each chunk: several at a switch."""
_Clock = dict[int, int]
"""By thread block, how many of its ops have happened before."""


@dataclass(frozen=True)
class _Kind:
    """An op that moves chunks: what it reads and writes, in the order of its lists.

    Attributes:
        reduces: all sources become one value; else source i goes to destination i.
        packets_from: the number of the first source that is packets, whose flags it waits for.
        packets_to: the number of the first destination that is packets.
    """

    reduces: bool = False
    packets_from: int = 1 << 16
    packets_to: int = 1 << 16


_MOVES = {
    "put": _Kind(),
    "pws": _Kind(),
    "pwsf": _Kind(),
    "get": _Kind(),
    "copy": _Kind(),
    "gstore": _Kind(),
    "gstorepkt": _Kind(packets_from=0, packets_to=0),
    "ppkt": _Kind(packets_to=0),
    "rppkt": _Kind(packets_from=0, packets_to=0),
    "cpkt": _Kind(packets_to=0),
    "upkt": _Kind(packets_from=0),
    "re": _Kind(reduces=True),
    "res": _Kind(reduces=True),
    "rre": _Kind(reduces=True),
    "rres": _Kind(reduces=True),
    "repkt": _Kind(reduces=True, packets_from=1),
    "respkt": _Kind(reduces=True, packets_from=1, packets_to=1),
    "recpkt": _Kind(reduces=True, packets_from=1, packets_to=1),
    "recspkt": _Kind(reduces=True, packets_from=1, packets_to=1),
    "glres": _Kind(reduces=True),
}
_NOTHING = ("nop", "flush")


def plans(document: Mapping[str, Any], name: str) -> tuple[Plan, ...]:
    """Return the plans of a file, which are not proved yet.

    Raises:
        ValueError, KeyError, TypeError, IndexError: it is malformed, or plans cannot express it.
    """
    collective = _READ.get(document["collective"])
    if collective is None:
        raise ValueError(f"expected one of {', '.join(_READ)}, got {document['collective']!r}")
    gpus = document["gpus"]
    if [gpu["id"] for gpu in gpus] != list(range(len(gpus))):
        raise ValueError(f"expected the GPUs 0 to {len(gpus) - 1} in order")
    counts = {(gpu["input_chunks"], gpu["output_chunks"]) for gpu in gpus}
    if len(counts) > 1:
        raise ValueError(f"expected as many chunks on each GPU, got {sorted(counts)}")
    chunks = num_chunks(collective, len(gpus), *counts)
    moves = Moves(collective, len(gpus), chunks, in_place=document["inplace"] is True)
    _Run(moves, gpus).to_end()
    return moves.plans(name)


@dataclass
class _Block:
    """A thread block: `clock` is what has happened before its next op."""

    gpu: int
    number: int
    index: int  # among all
    ops: list[Mapping[str, Any]]
    channels: dict[str, list[int]]
    buffers: dict[str, list[int]]
    at: int = 0
    clock: _Clock = field(default_factory=dict)

    def __str__(self) -> str:
        name = self.ops[self.at]["name"]
        return f"GPU {self.gpu}, thread block {self.number}, op {self.at} ({name})"


@dataclass
class _Meeting:
    """Thread blocks at a barrier, or in an op of a group, until all have come."""

    here: set[int] = field(default_factory=set)
    clock: _Clock = field(default_factory=dict)
    is_full: bool = False


class _Run:
    def __init__(self, moves: Moves, gpus: Sequence[Mapping[str, Any]]) -> None:
        self._moves, self._gpus, numbers = moves, gpus, count()
        self._blocks = [
            _Block(
                gpu["id"],
                block["id"],
                next(numbers),
                [
                    one
                    for op in block["ops"]
                    for one in (op["ops"] if op["name"] == "pipeline" else [op])
                ],
                {one["channel_type"]: one["channel_ids"] for one in block["channels"]},
                {
                    one["access_channel_type"]: one["remote_buffer_ids"]
                    for one in block.get("remote_buffer_refs", ())
                },
            )
            for gpu in gpus
            for block in gpu["threadblocks"]
        ]
        # Signals: of a channel, the k-th of its type from one GPU to another.
        self._signals: dict[object, list[_Clock]] = defaultdict(list)
        for gpu in gpus:
            for at, one in enumerate(gpu.get("semaphores", ())):
                number = min(one["init_value"], MOST_CHUNKS)  # more are never taken
                self._signals[gpu["id"], at] += [{} for _ in range(number)]
        self._meetings: dict[object, _Meeting] = defaultdict(_Meeting)
        self._packets: dict[_Where, _Clock] = {}
        self._writes: dict[_Where, tuple[int, int, str]] = {}
        self._reads: dict[_Where, list[tuple[int, int, str]]] = defaultdict(list)

    def to_end(self) -> None:
        """Run all ops; ValueError: one waits for ever."""
        has_moved = True
        while has_moved:
            has_moved = False
            for block in self._blocks:
                while block.at < len(block.ops) and self._step(block, block.ops[block.at]):
                    block.at += 1
                    has_moved = True
        for block in self._blocks:
            if block.at < len(block.ops):
                raise ValueError(f"{block} waits for ever")

    def _step(self, block: _Block, op: Mapping[str, Any]) -> bool:
        """Run an op; return whether it could."""
        name = op["name"]
        block.clock[block.index] = block.at + 1
        if name in _MOVES:
            return self._move(block, op, _MOVES[name])
        if name in ("signal", "rlxsignal", "wait", "rlxwait"):
            keys = [self._channel(block, op, at, name) for at in op["channel_ids"]]
            return self._give(block, keys) if "signal" in name else self._take(block, keys)
        if name in ("sem_release", "sem_acquire"):
            keys = [(block.gpu, at) for at in op["semaphore_ids"]]
            return self._give(block, keys) if name == "sem_release" else self._take(block, keys)
        if name == "barrier":
            key = block.gpu, op["barrier_id"]
            return self._meet(block, key, op["num_threadblocks"])
        if name not in _NOTHING:
            raise ValueError(f"{block}: plans have no such op")
        return True

    def _channel(self, block: _Block, op: Mapping[str, Any], at: int, name: str) -> object:
        """Return the key of a channel from this GPU for a signal, to it for a wait."""
        kind = op["channel_type"]
        (all_,) = (one for one in self._gpus[block.gpu]["channels"] if one["channel_type"] == kind)
        number = block.channels[kind][at]
        peers = all_["connected_to"]
        pair = block.gpu, peers[number]
        return (*(pair if "signal" in name else pair[::-1]), kind, peers[:number].count(pair[1]))

    def _give(self, block: _Block, keys: Sequence[object]) -> bool:
        for key in keys:
            self._signals[key].append(dict(block.clock))
        return True

    def _take(self, block: _Block, keys: Sequence[object]) -> bool:
        if not all(self._signals[key] for key in keys):
            return False
        for key in keys:
            _join(block.clock, self._signals[key].pop(0))
        return True

    def _meet(
        self, block: _Block, key: object, size: int, act: Callable[[], object] = lambda: None
    ) -> bool:
        """Wait for `size` thread blocks, the last of which acts; return whether all have come."""
        meeting = self._meetings[key]
        if not meeting.is_full:
            meeting.here.add(block.index)
            _join(meeting.clock, block.clock)
            if len(meeting.here) < size:
                return False
            _join(block.clock, meeting.clock)
            act()
            meeting.is_full, meeting.clock = True, dict(block.clock)
        if block.index not in meeting.here:
            return False  # it has come for the next meeting
        _join(block.clock, meeting.clock)
        meeting.here.remove(block.index)
        if not meeting.here:
            del self._meetings[key]
        return True

    def _move(self, block: _Block, op: Mapping[str, Any], kind: _Kind) -> bool:
        sources, targets = (
            [self._places(block, op, one) for one in op[f"{end}_buff"]] for end in ("src", "dst")
        )
        packets = [one for places in _together(sources[kind.packets_from :]) for one in places]
        if not all(one in self._packets for one in packets):
            return False
        group = op.get("tbg_info")

        def act() -> None:
            for one in packets:
                _join(block.clock, self._packets[one])
            self._act(block, kind, sources, targets)

        key = block.gpu, repr((op["name"], sources, targets))
        if group is None:
            act()
        elif not self._meet(block, key, group["tbg_size"], act):
            return False
        if op["name"] in ("pws", "pwsf"):
            self._give(block, [self._channel(block, op, at, "signal") for at in op["channel_ids"]])
        return True

    def _act(
        self,
        block: _Block,
        kind: _Kind,
        sources: list[_Chunks],
        targets: list[_Chunks],
    ) -> None:
        if len({len(one) for one in (*sources, *targets)}) > 1:
            raise ValueError(f"{block}: moves chunks into another number of chunks")
        flags = [one for places in _together(targets[kind.packets_to :]) for one in places]
        if kind.reduces:
            sources, targets = [_together(sources)], [_together(targets)]
        elif len(sources) == 1:
            sources = sources * len(targets)
        for taken, given in zip(sources, targets, strict=True):
            for source, target in zip(taken, given, strict=True):
                self._write(block, source, target)
        for one in flags:
            self._packets[one] = dict(block.clock)

    def _write(self, block: _Block, sources: list[_Where], targets: list[_Where]) -> None:
        """Write the reduction of sources to targets, this GPU's first."""
        moves, values = self._moves, list[Value]()
        for one in sources:
            self._check(block, one, self._writes.get(one))
            self._reads[one].append((block.index, block.at + 1, str(block)))
            try:
                values.append(moves.read(*one))
            except ValueError as error:
                raise ValueError(f"{block}: {error}") from error
        for one in sorted(targets, key=lambda where: where[0] != block.gpu):
            for other in (*self._reads.pop(one, ()), self._writes.get(one)):
                self._check(block, one, other)
            self._writes[one] = block.index, block.at + 1, str(block)
            if len(values) > 1 and one[0] != block.gpu:
                raise ValueError(f"{block}: reduces into another GPU only")
            moves.write(*one, values)
            values = values if len(values) == 1 else [moves.read(*one)]

    def _check(self, block: _Block, where: _Where, other: tuple[int, int, str] | None) -> None:
        """Check that another op on a chunk has happened before this one."""
        if other is None or other[0] == block.index or block.clock.get(other[0], 0) >= other[1]:
            return
        rank, (buffer, at) = where
        raise ValueError(
            f"{block} and {other[2]} both use {buffer}[{at}] of GPU {rank}, one writes it, and "
            "no signal, barrier, semaphore or packet orders them"
        )

    def _places(self, block: _Block, op: Mapping[str, Any], end: Mapping[str, Any]) -> _Chunks:
        """Return the place of each chunk of an end, or those of all GPUs at a switch."""
        gpu = self._gpus[block.gpu]
        if "switch_channel_id" in end:
            groups = [
                (one.get("buffer_type") or one["buff"], group["ranks"])
                for one in gpu["channels"]
                if one["channel_type"] == "switch"
                for group in one["rank_groups"]
            ]
            buffer, ranks = groups[block.channels["switch"][end["switch_channel_id"]]]
        elif "buffer_id" in end:
            of_all = block.buffers[op["channel_type"]][end["buffer_id"]]
            buffer, ranks = (gpu["remote_buffers"][of_all][key] for key in ("type", "rank"))
            ranks = [ranks]
        else:
            buffer, ranks = end["type"], [block.gpu]
        if not 0 <= end["index"] <= end["index"] + end["size"] <= MOST_CHUNKS:
            raise ValueError(f"{block}: expected up to {MOST_CHUNKS} chunks, got {dict(end)}")
        chunks = range(end["index"], end["index"] + end["size"])
        return [[(rank, (buffer, at)) for rank in ranks] for at in chunks]


def _together(ends: Sequence[_Chunks]) -> _Chunks:
    """Return the places of each chunk at all ends."""
    return [[one for places in chunk for one in places] for chunk in zip(*ends, strict=True)]


def _join(clock: _Clock, other: _Clock) -> None:
    for block, at in other.items():
        clock[block] = max(at, clock.get(block, 0))
