"""MSCCL's XML: thread blocks of each GPU, whose steps send, receive, reduce and copy chunks.

Writing, a thread block serves a peer, and each step waits for the one before it. Reading, the steps
of all GPUs run here in an order in which they can run, with messages first in, first out between
each two GPUs; `moves.py` makes plans of it. The proof decides whether the plans are right.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from hccl_py.lab.interchange.moves import AFTERWARDS, Moves, Place, Value, num_chunks
from hccl_py.plan.language import Buffer, Chunk, OpKind, Plan
from hccl_py.plan.limits import MOST_CHUNKS
from hccl_py.transport.errors import InvalidArgumentError

_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
_READ = {name: ours for ours, name in _NAMES.items()} | {"reducescatter": "reduce_scatter"}
_RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
_SENDS = ("s", "rcs", "rrs", "rrcs")
_OTHERS = ("cpy", "re", "nop")


def written(plans: Sequence[Plan]) -> str:
    """Return the XML; InvalidArgumentError: MSCCL has no such collective."""
    first = plans[0]
    if first.collective not in _NAMES:
        raise InvalidArgumentError(f"MSCCL has {', '.join(_NAMES)}; got {first.collective}")
    in_place = first.collective == "all_reduce"
    root = ElementTree.Element(
        "algo",
        name=first.algorithm,
        proto="Simple",
        nchannels="1",
        nchunksperloop=str(first.shape.data_chunks or max(first.shape)),
        ngpus=str(first.world_size),
        coll=_NAMES[first.collective],
        inplace=str(int(in_place)),
        outofplace=str(int(not in_place)),
    )
    for plan in plans:
        _write_gpu(root, plan)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _write_gpu(root: ElementTree.Element, plan: Plan) -> None:
    shape, slots = plan.shape, [0]
    gpu = ElementTree.SubElement(root, "gpu", id=str(plan.rank))
    blocks: dict[int, list[ElementTree.Element]] = {}
    before: tuple[int, ElementTree.Element] | None = None
    for op in plan.ops:
        chunk, end = op.src or op.dst, op.dst or op.src
        assert chunk is not None and end is not None
        slots += [one.scratch + one.slots for one in (chunk, end) if one.scratch is not None]
        kind = {OpKind.SEND: "s", OpKind.RECV: "r", OpKind.RECV_REDUCE: "rrc", OpKind.COPY: "cpy"}
        for peer in op.peers or (-1,):
            steps = blocks.setdefault(peer, [])
            (from_, at), (to, off) = _place(chunk), _place(end)
            step = ElementTree.Element(
                "step", s=str(len(steps)), type=kind[op.kind], srcbuf=from_, srcoff=str(at)
            )
            step.attrib |= {"dstbuf": to, "dstoff": str(off), "cnt": str(chunk.end - chunk.begin)}
            step.attrib |= {"depid": "-1", "deps": "-1", "hasdep": "0"}
            if before is not None and before[0] != peer:
                step.set("depid", str(list(blocks).index(before[0])))
                step.set("deps", before[1].get("s", ""))
                before[1].set("hasdep", "1")
            steps.append(step)
            before = peer, step
    gpu.set("i_chunks", str(shape.data_chunks or shape.input_blocks))
    gpu.set("o_chunks", str(shape.data_chunks or shape.output_blocks))
    gpu.set("s_chunks", str(max(slots)))
    for number, (peer, steps) in enumerate(blocks.items()):
        ends = {"id": str(number), "send": str(peer), "recv": str(peer), "chan": "0"}
        ElementTree.SubElement(gpu, "tb", ends).extend(steps)


def _place(chunk: Chunk) -> Place:
    if chunk.scratch is not None:
        return "s", chunk.scratch
    return "o" if chunk.buffer is Buffer.OUTPUT else "i", chunk.begin


def read(path: Path) -> tuple[Plan, ...]:
    """Return the plans of a file, which are not proved yet.

    Raises:
        InvalidArgumentError: it cannot be read, or has what plans cannot express.
    """
    try:
        root = ElementTree.parse(path).getroot()
        return _Reading(root).plans(path.name)
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        what = f"no attribute {error}" if isinstance(error, KeyError) else error
        raise InvalidArgumentError(f"{path}: expected MSCCL's XML: {what}") from error


@dataclass
class _Block:
    send: int
    recv: int
    channel: str
    steps: list[dict[str, str]]
    done: int = 0


class _Sent(NamedTuple):
    channel: str
    value: Value
    time: float


class _Reading:
    def __init__(self, root: ElementTree.Element) -> None:
        if (coll := root.attrib["coll"]) not in _READ:
            raise ValueError(f"coll: expected one of {', '.join(_READ)}, got {coll!r}")
        n, collective = int(root.attrib["ngpus"]), _READ[coll]
        gpus = sorted(root.iter("gpu"), key=lambda one: int(one.attrib["id"]))
        if len(gpus) != n or any(int(one.attrib["id"]) != at for at, one in enumerate(gpus)):
            raise ValueError(f"there are not the GPUs 0 to {n - 1}")
        counts = [int(gpus[0].attrib[name]) for name in ("i_chunks", "o_chunks")]
        in_place = root.get("inplace", "1") == "1" and root.get("outofplace") != "1"
        chunks = num_chunks(collective, n, counts)
        self._moves = Moves(collective, n, chunks, in_place=in_place)
        self._gpus = [
            {
                int(tb.attrib["id"]): _Block(
                    int(tb.attrib["send"]),
                    int(tb.attrib["recv"]),
                    tb.attrib["chan"],
                    [dict(step.attrib) for step in tb.iter("step")],
                )
                for tb in gpu.iter("tb")
            }
            for gpu in gpus
        ]
        self._lanes: dict[tuple[int, int], deque[_Sent]] = defaultdict(deque)
        self._unnamed = count(1 << 20)

    def plans(self, name: str) -> tuple[Plan, ...]:
        moved = True
        while moved:
            moved = False
            for rank, blocks in enumerate(self._gpus):
                for block in blocks.values():
                    if block.done < len(block.steps) and self._can_run(rank, block):
                        self._run(rank, block, block.steps[block.done])
                        block.done += 1
                        moved = True
        for rank, blocks in enumerate(self._gpus):
            for number, block in blocks.items():
                if block.done < len(block.steps):
                    raise ValueError(f"GPU {rank}, tb {number}, step {block.done} waits for ever")
        return self._moves.plans(name)

    def _can_run(self, rank: int, block: _Block) -> bool:
        step = block.steps[block.done]
        waits_for = int(step.get("depid", -1))
        if waits_for >= 0 and self._gpus[rank][waits_for].done <= int(step["deps"]):
            return False
        if step["type"] not in _RECEIVES:
            return True
        lane, number = self._lanes[block.recv, rank], int(step["cnt"])
        return len(lane) >= number and all(
            lane[at].channel == block.channel for at in range(number)
        )

    def _run(self, rank: int, block: _Block, step: dict[str, str]) -> None:
        kind, moves = step["type"], self._moves
        if kind not in (*_RECEIVES, "s", *_OTHERS):
            raise ValueError(f"GPU {rank}: unknown type of step {kind!r}")
        if int(step.get("cnt", 0)) > MOST_CHUNKS:
            raise ValueError(f"GPU {rank}: expected a cnt up to {MOST_CHUNKS}, got {step['cnt']}")
        for at in range(int(step["cnt"]) if kind != "nop" else 0):
            src, dst = ((step[f"{end}buf"], int(step[f"{end}off"]) + at) for end in ("src", "dst"))
            if kind == "rrs":  # a sum that is only sent on
                dst = "s", next(self._unnamed)
            if kind in _RECEIVES:
                _, value, sent = self._lanes[block.recv, rank].popleft()
                values = [value] if kind in ("r", "rcs") else [moves.read(rank, src), value]
                moves.write(rank, dst, values, sent)
            elif kind == "cpy":
                moves.write(rank, dst, [moves.read(rank, src)])
            elif kind == "re":
                moves.write(rank, dst, [moves.read(rank, dst), moves.read(rank, src)])
            if kind in _SENDS:
                value = moves.read(rank, src if kind == "s" else dst)
                message = _Sent(block.channel, value, moves.now + AFTERWARDS)
                self._lanes[rank, block.send].append(message)
