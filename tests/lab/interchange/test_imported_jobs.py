"""Plans of other programs run in a job, with numpy as the oracle."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mscclpp_files import Json, document, op, sync
from thread_ranks import ThreadRanks

from hccl_py import Communicator
from hccl_py.lab.plan_command.main import main

N = 4


def ring(me: int) -> list[list[Json]]:
    """All_gather around a ring, two pieces to each block, as MSCCL++ writes it."""
    ahead, behind = (me + 1) % N, (me - 1) % N
    steps = ("signal", ahead), ("wait", behind)
    blocks = []
    for piece in range(2):
        ops = [op("copy", f"o{2 * me + piece}", f"i{piece}")]
        for step in range(N - 1):
            at = 2 * ((me - step) % N) + piece
            ops += [op("put", f"{ahead}:o{at}", f"o{at}")]
            ops += [sync(one, peer, channel=piece) for one, peer in steps]
        blocks.append(ops)
    return blocks


def packets(me: int) -> list[list[Json]]:
    """All_reduce: everyone reduces a chunk, and sends it to all as packets."""
    others = [peer for peer in range(N) if peer != me]
    ops = [op("ppkt", f"{peer}:s{me}", f"i{peer}") for peer in others]
    targets = " ".join(f"{peer}:s{4 + me}" for peer in others)
    sources = " ".join(f"s{peer}" for peer in others)
    ops += [op("respkt", f"o{me} {targets}", f"i{me} {sources}", reduce_op="sum")]
    return [[*ops, *(op("upkt", f"o{peer}", f"s{4 + peer}") for peer in others)]]


def xml(me: int) -> str:
    """Reduce_scatter in MSCCL's XML: everyone sends each block to its owner."""
    blocks = ""
    for number, peer in enumerate(peer for peer in range(N) if peer != me):
        after = f'depid="{number - 1}" deps="1"' if number else 'depid="-1" deps="-1"'
        add = f'type="rrc" srcbuf="i" srcoff="{me}" dstbuf="i" dstoff="{me}" cnt="1" {after}'
        send = f'type="s" srcbuf="i" srcoff="{peer}" dstbuf="i" dstoff="{peer}" cnt="1"'
        blocks += f'<tb id="{number}" send="{peer}" recv="{peer}" chan="0"><step s="0" {send} '
        blocks += f'depid="-1" deps="-1" hasdep="0"/><step s="1" {add} hasdep="1"/></tb>'
    return f'<gpu id="{me}" i_chunks="{N}" o_chunks="1" s_chunks="0">{blocks}</gpu>'


def all_gather(comm: Communicator, count: int) -> None:
    output = np.zeros((N, count), np.int32)
    comm.all_gather(output, np.full(count, comm.rank + 1, np.int32))
    np.testing.assert_array_equal(output, np.repeat([[1], [2], [3], [4]], count, 1))


def all_reduce(comm: Communicator, count: int) -> None:
    data = np.arange(count, dtype=np.float64) * (comm.rank + 1)
    comm.all_reduce(data)
    np.testing.assert_array_equal(data, np.arange(count) * 10.0)


def reduce_scatter(comm: Communicator, count: int) -> None:
    output = np.zeros(count, np.int64)
    comm.reduce_scatter(output, np.arange(N * count) * (comm.rank + 1))
    own = np.arange(N * count).reshape(N, count)[comm.rank]
    np.testing.assert_array_equal(output, own * 10)


FILES = {
    "all_gather": ("f.json", document("allgather", (2, 2 * N), [ring(me) for me in range(N)])),
    "all_reduce": ("f.json", document("allreduce", (N, N), [packets(me) for me in range(N)])),
    "reduce_scatter": (
        "f.xml",
        f'<algo name="x" nchannels="1" ngpus="{N}" coll="reduce_scatter" inplace="1">'
        f"{''.join(map(xml, range(N)))}</algo>",
    ),
}


@pytest.mark.parametrize("nodes", ["aaaa", "aabb"])
@pytest.mark.parametrize("call", [all_gather, all_reduce, reduce_scatter])
def test_imported_plan_runs_in_a_job(
    call: Callable[[Communicator, int], None],
    nodes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, content = FILES[call.__name__]
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["import", str(tmp_path / name), "-o", str(tmp_path / "own.json")]) == 0
    monkeypatch.setenv("HCCL_ALGORITHM", f"{call.__name__}=plan:{tmp_path}/own.json")

    def work(comm: Communicator) -> None:
        for count in (1, 3, 1000, 100_003):
            call(comm, count)

    with caplog.at_level(logging.INFO, "hccl_py"), ThreadRanks(nodes) as ranks:
        ranks.run(work)
    calls = [one for one in caplog.messages if f" {call.__name__} of up to" in one]
    assert sum("plan:own.json; your algorithm, imported" in one for one in calls) >= 3
