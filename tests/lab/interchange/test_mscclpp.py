"""MSCCL++'s JSON: what is written is read again, and stays right; what others write is read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mscclpp_files import Json, document, op, sync

from hccl_py.algorithms.table import ALGORITHMS, plans_for
from hccl_py.lab.algorithms import nodes_of
from hccl_py.lab.interchange import mscclpp, mscclpp_file
from hccl_py.lab.plan_command.main import main
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Plan
from hccl_py.plan.verify import verify

WRITTEN = [key for key in ALGORITHMS if key[0] in mscclpp_file.NAMES]


def right(file: Json) -> tuple[Plan, ...]:
    """Return the plans of a file, proved."""
    plans = mscclpp.plans(file, "test")
    for in_place in (False, True):
        verify(plans, COLLECTIVES[plans[0].collective], in_place=in_place)
    return plans


def ops(plan: Plan) -> list[str]:
    return [str(one) for one in plan.ops]


@pytest.mark.parametrize("key", WRITTEN, ids="=".join)
@pytest.mark.parametrize("sizes", [[1], [2], [3, 2], [8], [8, 8]])
def test_written_plans_are_read_and_right(key: tuple[str, str], sizes: list[int]) -> None:
    entry = ALGORITHMS[key]
    file = json.loads(mscclpp_file.written(plans_for(*key, nodes_of(sizes))))
    back = mscclpp.plans(file, "back")
    contract = replace(COLLECTIVES[key[0]], equal_blocks=entry.equal_blocks)
    for in_place in (False, True):
        verify(back, contract, in_place=in_place)
    for gpu in file["gpus"]:
        for block in gpu["threadblocks"]:
            assert len(block["ops"]) <= 64
            assert all(len(one["channel_ids"]) <= 16 for one in block["channels"])
            assert all(len(one["channel_ids"]) <= 8 for one in block["ops"] if "channel_ids" in one)


def test_puts_into_scratch_become_messages_that_a_reduction_takes() -> None:
    blocks = [
        [
            op("put", f"{1 - me}:s0", "i0"),
            sync("signal", 1 - me),
            sync("wait", 1 - me),
            op("re", "o0", "i0 s0", reduce_op="sum"),
        ]
        for me in range(2)
    ]
    plans = right(document("allreduce", (1, 1), [[one] for one in blocks]))
    assert ops(plans[0]) == ["send data[0] to 1", "recv_reduce data[0] from 1"]


def test_packets_synchronise_and_sums_are_sent_on() -> None:
    # GPU 0 adds what the others send, and sends the sum to all of them.
    others = [[[op("ppkt", f"0:s{me}", "i0"), op("upkt", "o0", "s0")]] for me in range(1, 4)]
    adds = op("respkt", "o0 1:s0 2:s0 3:s0", "i0 s1 s2 s3", reduce_op="sum")
    plans = right(document("allreduce", (1, 1), [[[adds]], *others], protocol="LL"))
    assert ops(plans[0]) == ["recv_reduce data[0] from 1 2 3", "send data[0] to 1 2 3"]
    assert ops(plans[2]) == ["send data[0] to 0", "recv data[0] from 0"]


def test_reads_of_other_gpus_are_messages_from_there() -> None:
    def half(me: int) -> list[Json]:
        other = 1 - me
        return [
            sync("signal", other),
            sync("wait", other),
            op("rres", f"i{me} {other}:i{me}", f"i{me} {other}:i{me}", reduce_op="sum"),
            sync("signal", other),
            sync("wait", other),
        ]

    plans = right(document("allreduce", (2, 2), [[half(0)], [half(1)]], inplace=True))
    assert sorted(ops(plans[0])) == [
        "recv data[1] from 1",
        "recv_reduce data[0] from 1",
        "send data[0] to 1",
        "send data[1] to 1",
    ]


def test_switches_reduce_and_store_everywhere() -> None:
    blocks = [
        [sync("signal", *{0, 1, 2} - {me}), sync("wait", *{0, 1, 2} - {me})]
        + [op("glres", f"*i{me}", f"*i{me}", channel_type="switch", reduce_op="sum")]
        for me in range(3)
    ]
    plans = right(document("allreduce", (3, 3), [[one] for one in blocks], inplace=True))
    assert "recv_reduce data[1] from 0 2" in ops(plans[1])
    assert "send data[1] to 0 2" in ops(plans[1])


def test_blocks_meet_at_barriers_semaphores_and_in_groups() -> None:
    def gpu(me: int) -> list[list[Json]]:
        group = [{"tb_id": at, "tbg_size": 2} for at in range(2)]
        barrier: Json = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 3}
        copies = [[op("copy", "s0", "i0", tbg_info=one), barrier] for one in group]
        sends = [
            barrier,
            op("put", f"{1 - me}:s1", "s0"),
            sync("signal", 1 - me),
            sync("wait", 1 - me),
            {"name": "sem_release", "semaphore_ids": [0]},
        ]
        takes = [
            {"name": "sem_acquire", "semaphore_ids": [0]},
            op("copy", f"o{1 - me}", "s1"),
            op("copy", f"o{me}", "i0"),
        ]
        context = {"unit_size": 1024, "num_chunks": 1}
        pipeline: Json = {"name": "pipeline", "iter_context": context, "ops": takes}
        return [*copies, sends, [pipeline]]

    plans = right(document("allgather", (1, 2), [gpu(0), gpu(1)]))
    assert "copy input[0] to output[0]" in ops(plans[0])


def test_pieces_of_a_block_that_go_the_same_way_are_one_block() -> None:
    def gpu(me: int) -> list[list[Json]]:
        return [
            [
                op("put", f"{1 - me}:o{2 * me + piece}", f"i{piece}"),
                sync("signal", 1 - me, channel=piece),
                sync("wait", 1 - me, channel=piece),
                op("copy", f"o{2 * me + piece}", f"i{piece}"),
            ]
            for piece in range(2)
        ]

    plans = right(document("allgather", (2, 4), [gpu(0), gpu(1)]))
    assert sorted(ops(plans[0])) == [
        "copy input[0] to output[0]",
        "recv output[1] from 1",
        "send input[0] to 1",
    ]


def test_a_value_that_is_overwritten_too_early_is_kept() -> None:
    # Each passes on what it had before it got the other's: a swap of chunks in place.
    def gpu(me: int) -> list[list[Json]]:
        other = 1 - me
        swap = [op("copy", "s0", f"i{other}"), sync("signal", other), sync("wait", other)]
        swap += [op("put", f"{other}:i{me}", "s0"), sync("signal", other), sync("wait", other)]
        return [swap]

    plans = right(document("alltoall", (2, 2), [gpu(0), gpu(1)], inplace=True))
    assert sum(one.startswith("recv") for one in ops(plans[0])) == 1


def wrong(file: Json) -> str:
    with pytest.raises(ValueError) as error:
        mscclpp.plans(file, "test")
    return str(error.value)


def exchange(*names: str, without: str = "") -> Json:
    """Return a file of two GPUs, the second of which leaves an op out."""

    def gpu(me: int) -> list[Json]:
        steps = {
            "put": op("put", f"{1 - me}:s0", "i0"),
            "re": op("re", "o0", "i0 s0", reduce_op="sum"),
            "own": op("re", "o0", "i0 s1", reduce_op="sum"),
            "copy": op("copy", "s1", "i0"),
            "odd": {"name": "odd"},
        }
        left = [one for one in names if one != without or not me]
        return [steps.get(one) or sync(one, 1 - me) for one in left]

    return document("allreduce", (1, 1), [[gpu(0)], [gpu(1)]])


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (exchange("wait", "put", "signal"), "GPU 0, thread block 0, op 0 (wait) waits for ever"),
        (
            exchange("put", "signal", "wait", "re", without="wait"),
            "s[0] of GPU 1, one writes it, and",
        ),
        (exchange("copy", "own"), "a plan reduces what it receives"),
        (exchange("re"), "op 0 (re): GPU 0: s[0] is read before it is written"),
        (exchange("odd"), "GPU 0, thread block 0, op 0 (odd): plans have no such op"),
        (document("sendrecv", (1, 1), [[], []]), "expected one of allreduce, allgather"),
        (document("allgather", (1, 3), [[], []]), "for blocks of 2 GPUs, got 1 of input, 3 of"),
    ],
)
def test_file_that_plans_cannot_express_is_explained(file: Json, problem: str) -> None:
    assert problem in wrong(file)


@pytest.mark.parametrize("in_place", [False, True])
def test_pieces_of_a_block_that_go_different_ways_are_cut(in_place: bool) -> None:
    # Two rings that turn opposite ways, each with a piece of every block.
    def gpu(me: int) -> list[list[Json]]:
        blocks = []
        for piece, turn in enumerate((1, -1)):
            ahead, behind = (me + turn) % 4, (me - turn) % 4
            ops = [] if in_place else [op("copy", f"o{2 * me + piece}", f"i{piece}")]
            for step in range(3):
                at = 2 * ((me - turn * step) % 4) + piece
                ops.append(op("put", f"{ahead}:o{at}", f"o{at}"))
                ops.append(sync("signal", ahead, channel=piece))
                ops.append(sync("wait", behind, channel=piece))
            blocks.append(ops)
        return blocks

    file = document("allgather", (2, 8), [gpu(me) for me in range(4)], inplace=in_place)
    plans = right(file)
    assert plans[0].shape.block_parts == 2
    assert {(one.peers, one.src and one.src.begin % 2) for one in plans[0].ops if one.src} == {
        ((), 0),
        ((), 1),
        ((1,), 0),
        ((3,), 1),
    }


def test_too_many_ops_for_mscclpp_get_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "export all_reduce=ring --nodes 128 -o r.mscclpp.json"
    assert main(words.split()) == 2
    assert "expected at most 17 thread blocks" in capsys.readouterr().err
    assert main(["export", "broadcast=tree", "--nodes", "4", "-o", "r.mscclpp.json"]) == 2
    assert "MSCCL++ has all_reduce, all_gather" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
