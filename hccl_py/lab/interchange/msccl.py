"""MSCCL's XML: thread blocks of each GPU, whose steps send, receive, reduce and copy chunks.

Writing, a thread block serves a peer, and each step waits for the one before it. Reading, the steps
of all GPUs run here in an order in which they can run, with messages first in, first out between
each two GPUs: this order becomes that of the plans. `re`, a local reduction, is read where its
operand has just been received. The proof decides whether the plans are right.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Buffer, Chunk, Op, OpKind, Plan, PlanBuilder, data, input, output
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

_Place = tuple[str, int]
"""A buffer (i, o, s) and a chunk in it."""


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


def _place(chunk: Chunk) -> _Place:
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
        return _Reading(root, path.name).plans()
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


@dataclass
class _Gpu:
    plan: PlanBuilder
    blocks: dict[int, _Block]
    written: set[_Place] = field(default_factory=set)
    held: dict[_Place, int] = field(default_factory=dict)  # which chunk scratch has
    pending: dict[int, deque[_Place]] = field(default_factory=lambda: defaultdict(deque))


class _Reading:
    def __init__(self, root: ElementTree.Element, name: str) -> None:
        self._collective = _READ[root.attrib["coll"]]
        self._in_place = root.get("inplace", "1") == "1" and root.get("outofplace") != "1"
        self._n = int(root.attrib["ngpus"])
        gpus = sorted(root.iter("gpu"), key=lambda one: int(one.attrib["id"]))
        if [int(one.attrib["id"]) for one in gpus] != list(range(self._n)):
            raise ValueError(f"there are not the GPUs 0 to {self._n - 1}")
        of_data = COLLECTIVES[self._collective].blocks is None
        chunks = int(gpus[0].attrib["i_chunks"]) if of_data else 0
        self._gpus = [self._gpu(one, rank, chunks, name) for rank, one in enumerate(gpus)]
        self._lanes: dict[tuple[int, int], deque[tuple[str, int]]] = defaultdict(deque)

    def _gpu(self, one: ElementTree.Element, rank: int, chunks: int, name: str) -> _Gpu:
        head = Plan(self._collective, name, rank, self._n)
        head = replace(head, shape=COLLECTIVES[self._collective].shape(head, chunks))
        brought = int(one.get("i_chunks", 0))
        if not chunks and brought not in (0, head.shape.input_blocks):
            raise ValueError(
                f"GPU {rank}: expected {head.shape.input_blocks} input chunks, because a plan "
                f"cuts no blocks; got {brought}"
            )
        blocks = {
            int(tb.attrib["id"]): _Block(
                int(tb.attrib["send"]),
                int(tb.attrib["recv"]),
                tb.attrib["chan"],
                [dict(step.attrib) for step in tb.iter("step")],
            )
            for tb in one.iter("tb")
        }
        builder = PlanBuilder(head, (tuple(range(self._n)),))
        if self._collective == "all_gather" and self._in_place:
            builder.copy(output[rank], input[0])
        return _Gpu(builder, blocks)

    def plans(self) -> tuple[Plan, ...]:
        moved = True
        while moved:
            moved = False
            for rank, gpu in enumerate(self._gpus):
                for block in gpu.blocks.values():
                    if block.done < len(block.steps) and self._can_run(rank, block):
                        self._run(rank, block, block.steps[block.done])
                        block.done += 1
                        moved = True
        for rank, gpu in enumerate(self._gpus):
            for number, block in gpu.blocks.items():
                if block.done < len(block.steps):
                    raise ValueError(f"GPU {rank}, tb {number}, step {block.done} waits for ever")
            for peer in list(gpu.pending):
                self._flush(gpu, peer)
        return tuple(_merged(gpu.plan.finish()) for gpu in self._gpus)

    def _can_run(self, rank: int, block: _Block) -> bool:
        step, gpu = block.steps[block.done], self._gpus[rank]
        waits_for = int(step.get("depid", -1))
        if waits_for >= 0 and gpu.blocks[waits_for].done <= int(step["deps"]):
            return False
        if step["type"] not in _RECEIVES:
            return True
        lane, count = self._lanes[block.recv, rank], int(step["cnt"])
        return len(lane) >= count and all(lane[at][0] == block.channel for at in range(count))

    def _run(self, rank: int, block: _Block, step: dict[str, str]) -> None:
        kind = step["type"]
        if kind not in (*_RECEIVES, "s", *_OTHERS):
            raise ValueError(f"GPU {rank}: unknown type of step {kind!r}")
        for at in range(int(step["cnt"]) if kind != "nop" else 0):
            src, dst = (
                self._resolved(rank, step[f"{end}buf"], int(step[f"{end}off"]) + at)
                for end in ("src", "dst")
            )
            self._one(rank, block, kind, src, dst)

    def _one(self, rank: int, block: _Block, kind: str, src: _Place, dst: _Place) -> None:
        gpu, peer = self._gpus[rank], block.recv
        sent = src
        if kind in _RECEIVES:
            _, chunk = self._lanes[peer, rank].popleft()
            if kind == "r" and dst[0] == "s":
                gpu.held[dst] = chunk
                gpu.pending[peer].append(dst)
                return
            self._flush(gpu, peer)
            if kind in ("r", "rcs"):
                gpu.plan.recv(peer, self._target(rank, dst, chunk))
            else:
                # A sum that is only sent on gets a slot after those of the file.
                dst = ("s", self._num_slots(gpu)) if kind == "rrs" else dst
                self._copy(rank, src, dst)
                gpu.plan.recv_reduce([peer], self._target(rank, dst, chunk))
            sent = dst
        elif kind == "cpy":
            self._copy(rank, src, dst)
        elif kind == "re":
            source = next((one for one, its in gpu.pending.items() if src in its), None)
            if source is None:
                raise ValueError(f"GPU {rank}: a step `re` of a chunk that was not just received")
            self._flush(gpu, source, src)
            gpu.pending[source].popleft()
            self._copy(rank, dst, dst)
            gpu.plan.recv_reduce([source], self._target(rank, dst, gpu.held[src]))
        if kind in _SENDS:
            self._lanes[rank, block.send].append((block.channel, self._number(rank, sent)))
            gpu.plan.send([block.send], self._source(rank, sent))

    def _num_slots(self, gpu: _Gpu) -> int:
        return max((slot for buffer, slot in gpu.held if buffer == "s"), default=-1) + self._n + 1

    def _resolved(self, rank: int, buffer: str, at: int) -> _Place:
        if buffer not in ("i", "o", "s"):
            raise ValueError(f"GPU {rank}: expected a buffer i, o or s, got {buffer!r}")
        if self._collective == "all_reduce" and buffer == "o":
            return "i", at
        if self._in_place and self._collective == "all_gather" and buffer == "i":
            return "o", rank
        if self._in_place and self._collective == "reduce_scatter" and buffer == "o":
            return "i", rank
        return buffer, at

    def _number(self, rank: int, place: _Place) -> int:
        buffer, at = place
        if buffer == "s":
            return self._gpus[rank].held.get(place, 0)
        if (self._collective, buffer) == ("all_gather", "i"):
            return rank
        return rank if (self._collective, buffer) == ("reduce_scatter", "o") else at

    def _source(self, rank: int, place: _Place) -> Chunk:
        gpu = self._gpus[rank]
        for peer, slots in gpu.pending.items():
            if place in slots:
                self._flush(gpu, peer)
        if place[0] == "i" and place not in gpu.written and self._collective != "all_reduce":
            return input[place[1]]
        return self._chunk(rank, place)

    def _target(self, rank: int, place: _Place, chunk: int) -> Chunk:
        gpu = self._gpus[rank]
        gpu.written.add(place)
        gpu.held[place] = chunk
        return self._chunk(rank, place)

    def _chunk(self, rank: int, place: _Place) -> Chunk:
        (buffer, at), plan = place, self._gpus[rank].plan
        number = self._number(rank, place)
        if self._collective == "all_reduce":
            return data[at] if buffer == "i" else plan.scratch(at, like=data[number])
        if buffer == "o":
            return output[at]
        if buffer == "i" and at == rank and self._collective == "reduce_scatter":
            return output[0]
        like = output[number] if self._collective == "all_gather" else input[number]
        # The input of a plan is read only: what a file writes there is in scratch.
        return plan.scratch(at if buffer == "i" else self._n + at, like=like)

    def _copy(self, rank: int, src: _Place, dst: _Place) -> None:
        number, source = self._number(rank, src), self._source(rank, src)
        target = self._target(rank, dst, number)
        if source != target:
            self._gpus[rank].plan.copy(target, source)

    def _flush(self, gpu: _Gpu, peer: int, until: _Place | None = None) -> None:
        """Receive what was put off: messages of a peer, up to one."""
        slots, rank = gpu.pending[peer], self._gpus.index(gpu)
        while slots and slots[0] != until:
            slot = slots.popleft()
            gpu.plan.recv(peer, self._target(rank, slot, gpu.held[slot]))


def _merged(plan: Plan) -> Plan:
    """Join reductions into one place that follow one another, so that the sum is in rank order."""
    ops = list[Op]()
    for op in plan.ops:
        last = ops[-1] if ops else None
        is_more = last and op.kind is last.kind is OpKind.RECV_REDUCE and op.dst == last.dst
        if last and is_more and not {*op.peers} & {*last.peers}:
            ops[-1] = last._replace(peers=tuple(sorted(last.peers + op.peers)))
        else:
            ops.append(op)
    return replace(plan, ops=tuple(ops))
