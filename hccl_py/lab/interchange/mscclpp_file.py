"""MSCCL++'s execution plans (JSON), written: one op of a GPU runs after the other.

First all pairs that exchange messages meet. A send writes to the peer's memory and signals; the
receiver waits. A message lands in its destination if no earlier op uses that, else in a slot of
scratch of its own. A thread block runs at most 64 ops; at a barrier the next one continues.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from hccl_py.lab.interchange.moves import Place
from hccl_py.lab.interchange.mscclpp import NAMES
from hccl_py.plan.language import Buffer, Chunk, OpKind, Plan
from hccl_py.transport.errors import InvalidArgumentError

# Limits of MSCCL++'s executor.
_MOST_OPS = 64  # of a thread block
_MOST_CHANNELS = 16  # of a thread block; remote buffers too
_MOST_PEERS = 8  # of an op
_MOST_BARRIERS = 16

_T = TypeVar("_T")
_Json = dict[str, Any]
_NOP: _Json = {"name": "nop"}
_Landing = dict[tuple[int, int], list[tuple[Place, int]]]
"""By sender and receiver: place and width of the messages, in order."""


def written(plans: Sequence[Plan]) -> str:
    """Return the JSON; InvalidArgumentError: MSCCL++ does not have this, or not so large."""
    first = plans[0]
    if first.collective not in NAMES:
        raise InvalidArgumentError(f"MSCCL++ has {', '.join(NAMES)}; got {first.collective}")
    gpus = [_Gpu(plan) for plan in plans]
    landing: _Landing = defaultdict(list)
    for gpu in gpus:
        gpu.land(landing)
    document = {
        "name": first.algorithm,
        "collective": NAMES[first.collective],
        "protocol": "Simple",
        "inplace": first.collective == "all_reduce",
        "reuse_resources": False,
        "gpus": [gpu.written(landing) for gpu in gpus],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": (1 << 64) - 1,
    }
    return json.dumps(document, indent=1) + "\n"


class _Gpu:
    """A GPU while it is written."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._peers = sorted({peer for op in plan.ops for peer in op.peers})
        widths: dict[int, int] = defaultdict(int)  # of slots
        for op in plan.ops:
            for chunk in filter(None, (op.src, op.dst)):
                if (first := chunk.scratch) is not None:
                    width = (chunk.end - chunk.begin) // chunk.slots
                    for slot in range(first, first + chunk.slots):
                        widths[slot] = max(widths[slot], width)
        self._offsets, self._scratch = dict[int, int](), 0
        for slot in sorted(widths):
            self._offsets[slot] = self._scratch
            self._scratch += widths[slot]
        self._buffers: list[tuple[int, str]] = []
        self._blocks: list[_Block] = []

    def land(self, landing: _Landing) -> None:
        """Choose the places of the messages that this GPU receives."""
        used = set[Place]()
        for op in self._plan.ops:
            for peer in op.peers if op.kind in (OpKind.RECV, OpKind.RECV_REDUCE) else ():
                buffer, at, width = self._place(op.dst)
                if op.kind is OpKind.RECV_REDUCE or {(buffer, at + i) for i in range(width)} & used:
                    buffer, at = "s", self._scratch
                    self._scratch += width
                landing[peer, self._plan.rank].append(((buffer, at), width))
            for chunk in filter(None, (op.src, op.dst)):
                buffer, at, width = self._place(chunk)
                used |= {(buffer, at + i) for i in range(width)}

    def written(self, landing: _Landing) -> _Json:
        """Return the GPU's part of the file."""
        plan, shape = self._plan, self._plan.shape
        for op in self._ops(landing):
            self._add(op)
        channels = [{"channel_type": "memory", "connected_to": self._peers}] if self._peers else []
        return {
            "id": plan.rank,
            "input_chunks": shape.data_chunks or shape.input_blocks,
            "output_chunks": shape.data_chunks or shape.output_blocks,
            "scratch_chunks": self._scratch,
            "threadblocks": [block.written(at) for at, block in enumerate(self._blocks)],
            "channels": channels,
            "remote_buffers": [
                {"rank": rank, "type": buffer, "access_channel_types": ["memory"]}
                for rank, buffer in self._buffers
            ],
            "semaphores": [],
        }

    def _place(self, chunk: Chunk | None) -> tuple[str, int, int]:
        assert chunk is not None
        width = chunk.end - chunk.begin
        if chunk.scratch is not None:
            return "s", self._offsets[chunk.scratch], width
        return "o" if chunk.buffer is Buffer.OUTPUT else "i", chunk.begin, width

    def _end(self, chunk: Chunk | None) -> _Json:
        buffer, at, width = self._place(chunk)
        return {"type": buffer, "index": at, "size": width}

    def _ops(self, landing: _Landing) -> Iterator[_Json]:
        """Return the ops, with ranks for channels and a rank in each remote end."""
        for name in ("rlxsignal", "rlxwait"):
            yield from _sync(name, self._peers)
        yield _NOP
        places = {pair: iter(found) for pair, found in landing.items()}
        me = self._plan.rank
        for op in self._plan.ops:
            if op.kind is OpKind.COPY:
                yield {
                    "name": "copy",
                    "src_buff": [self._end(op.src)],
                    "dst_buff": [self._end(op.dst)],
                }
            elif op.kind is OpKind.SEND:
                for peers in _groups(op.peers):
                    targets = [(peer, *next(places[me, peer])) for peer in peers]
                    yield {
                        "name": "put",
                        "src_buff": [self._end(op.src)] * len(peers),
                        "dst_buff": [
                            {"rank": peer, "buffer": buffer, "index": at, "size": width}
                            for peer, (buffer, at), width in targets
                        ],
                        "channel_type": "memory",
                    }
                yield _NOP
                yield from _sync("signal", op.peers)
                continue
            else:
                yield from _sync("wait", op.peers)
                yield _NOP
                came = [next(places[peer, me]) for peer in op.peers]
                slots = [
                    {"type": place[0], "index": place[1], "size": width} for place, width in came
                ]
                to = self._end(op.dst)
                if op.kind is OpKind.RECV and slots == [to]:
                    continue
                for some in _groups(slots):
                    kept = [] if op.kind is OpKind.RECV else [to]
                    yield {
                        "name": "re" if kept else "copy",
                        "src_buff": [*kept, *some],
                        "dst_buff": [to],
                        **({"reduce_op": "sum"} if kept else {}),
                    }
            yield _NOP

    def _add(self, op: _Json) -> None:
        """Add an op to the last thread block, or to a new one."""
        if not self._blocks:
            self._blocks.append(_Block(self._peers, self._buffers))
        if not self._blocks[-1].add(op):
            barrier = {
                "name": "barrier",
                "barrier_id": len(self._blocks) - 1,
                "num_threadblocks": 2,
            }
            if barrier["barrier_id"] == _MOST_BARRIERS:
                raise InvalidArgumentError(
                    f"GPU {self._plan.rank}: expected at most {_MOST_BARRIERS + 1} thread blocks "
                    f"of {_MOST_OPS} ops, as MSCCL++ runs; got more: take an algorithm of fewer ops"
                )
            self._blocks[-1].ops.append(barrier)
            self._blocks.append(_Block(self._peers, self._buffers))
            self._blocks[-1].ops.append(barrier)
            self._blocks[-1].add(op)


class _Block:
    """A thread block while it is written."""

    def __init__(self, peers: Sequence[int], buffers: list[tuple[int, str]]) -> None:
        self._peers, self._buffers = peers, buffers
        self._channels: list[int] = []
        self._used: list[int] = []
        self.ops: list[_Json] = []

    def add(self, op: _Json) -> bool:
        """Add an op, unless there is no room for it and a barrier behind it."""
        remote = [(one["rank"], one["buffer"]) for one in op.get("dst_buff", ()) if "rank" in one]
        self._buffers += [one for one in dict.fromkeys(remote) if one not in self._buffers]
        channels = _joined(self._channels, map(self._peers.index, op.get("channel_ids", ())))
        used = _joined(self._used, map(self._buffers.index, remote))
        if len(self.ops) + 2 > _MOST_OPS or max(len(channels), len(used)) > _MOST_CHANNELS:
            return False
        self._channels, self._used, op = channels, used, dict(op)
        if remote:
            ids = [used.index(self._buffers.index(one)) for one in remote]
            ends = zip(ids, op["dst_buff"], strict=True)
            op["dst_buff"] = [
                {"buffer_id": at, "index": one["index"], "size": one["size"]} for at, one in ends
            ]
        if "channel_ids" in op:
            op["channel_ids"] = [
                channels.index(self._peers.index(one)) for one in op["channel_ids"]
            ]
        self.ops.append(op)
        return True

    def written(self, number: int) -> _Json:
        """Return the thread block's part of the file."""
        used, channels = self._used, self._channels
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": used}] if used else []
        ids = [{"channel_type": "memory", "channel_ids": channels}] if channels else []
        return {"id": number, "ops": self.ops, "channels": ids, "remote_buffer_refs": refs}


def _sync(name: str, peers: Sequence[int]) -> Iterator[_Json]:
    for some in _groups(peers):
        yield {"name": name, "channel_ids": list(some), "channel_type": "memory"}


def _joined(found: list[int], more: Iterable[int]) -> list[int]:
    return list(dict.fromkeys([*found, *more]))


def _groups(all_: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Return what an op of MSCCL++ takes at once."""
    return (all_[at : at + _MOST_PEERS] for at in range(0, len(all_), _MOST_PEERS))
