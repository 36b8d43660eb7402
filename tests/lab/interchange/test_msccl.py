"""MSCCL's XML: what is written is read again, and stays right; what others write is read."""

from pathlib import Path

import pytest

from hccl_py.algorithms.table import ALGORITHMS, plans_for
from hccl_py.lab.algorithms import nodes_of
from hccl_py.lab.interchange import msccl
from hccl_py.lab.plan_command.main import main
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.verify import verify

NAMED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
WRITTEN = [key for key, entry in ALGORITHMS.items() if key[0] in NAMED and not entry.equal_blocks]


@pytest.mark.parametrize("key", WRITTEN, ids="=".join)
@pytest.mark.parametrize("sizes", [[2], [4], [3, 2], [8]])
def test_written_plans_are_read_and_right(
    key: tuple[str, str], sizes: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "plan.xml"
    path.write_text(msccl.written(plans_for(*key, nodes_of(sizes))))
    back = msccl.read(path)
    for in_place in (False, True):
        verify(back, COLLECTIVES[key[0]], in_place=in_place)


def step(number: int, kind: str, src: str, dst: str, deps: str = "-1 -1") -> str:
    """Return a step, with places such as `i0` and a dependency such as `0 1`."""
    (after, which), (a, b) = deps.split(), (src[0], int(src[1:]))
    where = f'srcbuf="{a}" srcoff="{b}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" cnt="1"'
    return f'<step s="{number}" type="{kind}" {where} depid="{after}" deps="{which}" hasdep="0"/>'


def xml(coll: str, chunks: tuple[int, int, int], gpus: list[list[tuple[int, int, str]]]) -> str:
    """Return a file: of each GPU its thread blocks, with receiver, sender and steps."""
    text = f'<algo name="x" nchannels="1" ngpus="{len(gpus)}" coll="{coll}" inplace="1">'
    for number, blocks in enumerate(gpus):
        counts = " ".join(
            f'{name}_chunks="{count}"' for name, count in zip("ios", chunks, strict=True)
        )
        text += f'<gpu id="{number}" {counts}>'
        for at, (send, recv, steps) in enumerate(blocks):
            text += f'<tb id="{at}" send="{send}" recv="{recv}" chan="0">{steps}</tb>'
        text += "</gpu>"
    return text + "</algo>"


def test_local_reductions_and_dependencies_of_blocks_are_read(tmp_path: Path) -> None:
    # Both exchange their data through scratch; another thread block reduces it.
    blocks = [
        [
            (1 - me, 1 - me, step(0, "s", "i0", "s0") + step(1, "r", "i0", "s0")),
            (-1, -1, step(0, "nop", "i0", "i0", "0 1") + step(1, "re", "s0", "i0", "0 1")),
        ]
        for me in range(2)
    ]
    path = tmp_path / "exchange.xml"
    path.write_text(xml("allreduce", (1, 1, 1), blocks))
    plans = msccl.read(path)
    assert [str(op) for op in plans[0].ops] == [
        "send data[0] to 1",
        "recv_reduce data[0] from 1",
    ]
    verify(plans, COLLECTIVES["all_reduce"])


def test_steps_that_pass_on_are_read(tmp_path: Path) -> None:
    # A ring of three GPUs: each block goes round in place.
    def block(me: int) -> list[tuple[int, int, str]]:
        before, mine = (me - 1) % 3, f"o{me}"
        first = step(0, "s", mine, mine) + step(1, "rcs", f"o{before}", f"o{before}")
        last = f"o{(me - 2) % 3}"
        return [((me + 1) % 3, before, first + step(2, "r", last, last))]

    path = tmp_path / "ring.xml"
    path.write_text(xml("allgather", (1, 3, 0), [block(me) for me in range(3)]))
    verify(msccl.read(path), COLLECTIVES["all_gather"])


def test_imported_plan_is_run_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "all_reduce=ring", "--nodes", "4", "-o", "ring.xml"]) == 0
    assert main(["import", "ring.xml"]) == 0
    assert "ring.json: all_reduce of 4 ranks, which is right" in capsys.readouterr().out
    assert main(["check", "plan:ring.json"]) == 0
    assert main(["draw", "plan:ring.json"]) == 0
    words = "predict --nodes 4 --preset office1 --size 64K --algorithm ring,plan:ring.json"
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line.split() for line in lines if line.startswith("    64K"))
    assert row[1:5] == row[5:9], "it takes as long as the ring of the table"


def test_wrong_plan_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "all_reduce=ring", "--nodes", "3", "-o", "ring.xml"]) == 0
    text = Path("ring.xml").read_text()
    Path("ring.xml").write_text(text.replace('type="rrc"', 'type="r"', 1))
    assert main(["import", "ring.xml"]) == 1
    assert "is wrong for 3 ranks" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json*"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<algo", "expected MSCCL's XML: unclosed token"),
        (xml("allreduce", (1, 1, 0), [[(1, 1, step(0, "r", "i0", "i0"))], []]), "waits for ever"),
        (
            xml("allgather", (1, 3, 0), [[], []]),
            "for blocks of 2 GPUs, got 1 of input, 3 of output",
        ),
        (xml("allreduce", (1, 1, 1), [[(-1, -1, step(0, "re", "s0", "i0"))]]), "is read before it"),
        (
            xml("allreduce", (1, 1, 0), [[]]).replace('ngpus="1"', 'ngpus="9999999999"'),
            "the GPUs 0",
        ),
        (xml("custom", (1, 1, 1), [[]]), "expected one of allreduce, allgather"),
    ],
)
def test_file_that_plans_cannot_express_gets_one_line(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.xml"
    path.write_text(text)
    assert main(["import", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
