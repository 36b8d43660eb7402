"""The page of `hccl-plan draw`: what stands in it, and what a browser makes of it."""

import html
import itertools
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from recorded import job

from hccl_py.algorithms.choice.cost import NUMBERS
from hccl_py.algorithms.choice.tuning import FORMAT
from hccl_py.lab.plan_command.main import main
from hccl_py.lab.simulation.costs import PRESETS

CHROMIUM = shutil.which("chromium")


def page_of(tmp_path: Path, *arguments: str) -> Path:
    path = tmp_path / "page.html"
    assert main(["draw", *arguments, "-o", str(path)]) == 0
    return path


def content_of(path: Path) -> dict[str, Any]:
    text = path.read_text()
    found = re.search(r'<script id="plan" type="application/json">(.*?)</script>', text)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_name_in_svg_gets_a_picture_with_a_line_for_each_message(tmp_path: Path) -> None:
    path = tmp_path / "ring.svg"
    assert main(["draw", "all_reduce=ring", "--nodes", "3", "-o", str(path)]) == 0
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall("{*}circle")) == 3 * 4
    texts = [one.text for one in root.findall("{*}text")]
    assert {"all_reduce=ring", "rank 0", "rank 2", "4 steps"} <= set(texts)


def test_still_picture_shows_the_critical_path_from_begin_to_end(tmp_path: Path) -> None:
    path = tmp_path / "ring.svg"
    costs = ["--preset", "cloud25", "--size", "1M", "-o", str(path)]
    assert main(["draw", "all_reduce=ring", "--nodes", "2,2", *costs]) == 0
    lines = ElementTree.parse(path).getroot().findall("{*}line")
    thick = [one for one in lines if float(one.get("stroke-width", 0)) > 3]
    assert {one.get("stroke") for one in thick} > {"#222222"}  # a rank's work, and messages
    spans = sorted((float(one.get("x1", 0)), float(one.get("x2", 0))) for one in thick)
    begins, ends = [one for one, _ in spans], [one for _, one in spans]
    assert all(begin <= max(ends[:at]) + 1 for at, begin in enumerate(begins) if at)
    axis = max(float(one.get("x2", 0)) for one in lines if one.get("stroke") == "#bbbbbb")
    assert max(ends) == pytest.approx(axis, abs=1)


def test_name_in_png_gets_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "ring.png"
    assert main(["draw", "all_reduce=ring", "--nodes", "3", "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_page_ends_when_predict_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", "4,4", "--preset", "cloud25", "--size", "1M"]
    content = content_of(page_of(tmp_path, "all_reduce=hierarchical", *options))
    capsys.readouterr()
    assert main(["predict", "--algorithm", "hierarchical", *options]) == 0
    assert f" {content['end']:.0f} us " in capsys.readouterr().out
    assert max(one["end"] for one in content["messages"]) < content["end"]
    shares = dict(content["links"])
    assert 0.5 < shares["node 0 > node 1"] <= 1 and shares["rank 0 > rank 1"] == 0
    # Each part of the critical path begins no earlier than the one before it.
    spans = [
        (content["messages"][at]["begin"], content["messages"][at]["end"])
        if what == "message"
        else tuple(content["works"][at][3:])
        for what, at in content["critical"]
    ]
    assert spans == sorted(spans) and spans[0][0] == 0
    assert spans[-1][1] == pytest.approx(content["end"])


def test_links_of_a_network_are_drawn_and_predicted_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "racks.json"
    links = [([rank, f"rack {rank // 2}"], 1000) for rank in range(4)]
    links.append((["rack 0", "rack 1"], 250))
    named = [{"between": ends, "mbit": mbit} for ends, mbit in links]
    file.write_text(json.dumps({"links": named}))
    options = ["--network", str(file), "--preset", "cloud25", "--size", "1M"]
    content = content_of(page_of(tmp_path, "all_reduce=mesh", *options))
    capsys.readouterr()
    assert main(["predict", "--algorithm", "mesh", *options]) == 0
    predicted = capsys.readouterr().out
    assert f" {content['end'] / 1000:.3g} ms " in predicted and "4 ranks: the network" in predicted
    # The mesh sends each quarter of the data of two ranks across the racks, twice.
    least_us = 2 * 4 * (1 << 18) * 8 / 250
    assert least_us < content["end"] < 1.1 * least_us
    shares = dict(content["links"])
    assert shares["rack 0 > rack 1 250 Mbit/s"] > 0.9 > shares["0 > rack 0 1000 Mbit/s"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["draw", "all_reduce=ring", "--network", "n.json"], "--network: expected --preset or"),
        (["predict", "--network", "n.json", "--preset", "office1"], "n.json: No such file"),
        (
            ["predict", "--network", "n.json", "--preset", "office1", "--nodes", "4"],
            "--nodes: the file of --network has the ranks",
        ),
    ],
)
def test_network_that_says_too_little_or_too_much_is_one_line(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_plan_without_a_route_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one_way.json"
    links = [{"from": rank, "to": (rank + 1) % 3, "mbit": 50} for rank in range(3)]
    file.write_text(json.dumps({"links": links}))
    options = ["--network", str(file), "--preset", "cloud25", "--size", "64K"]
    assert main(["draw", "all_reduce=mesh", *options, "-o", str(tmp_path / "p.html")]) == 2
    assert "rank 2, to which the network has no route" in capsys.readouterr().err


def test_name_in_json_gets_a_timeline_with_an_arrow_for_each_message(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    options = ["--nodes", "3", "--preset", "office1", "--size", "4K"]
    assert main(["draw", "all_reduce=ring", *options, "-o", str(path)]) == 0
    events = json.loads(path.read_text())["traceEvents"]
    phases = Counter(one["ph"] for one in events)
    assert phases["s"] == phases["f"] == 3 * 4 and phases["X"] >= 3 * 4 * 3
    for rank in range(3):
        spans = sorted(
            (x["ts"], x["dur"])
            for x in events
            if (x["ph"], x["pid"]) == ("X", 0) and x["tid"] == rank
        )
        assert all(a + b <= c + 1e-6 for (a, b), (c, _) in itertools.pairwise(spans))
    assert {"rank 0", "rank 0 > rank 1"} <= {
        x["args"].get("name") for x in events if x["ph"] == "M"
    }


def test_page_is_whole_and_knows_where_each_value_came_from(tmp_path: Path) -> None:
    path = page_of(tmp_path, "all_reduce=ring", "--nodes", "3")
    assert set(re.findall(r"https?://[^\"]*", path.read_text())) == {"http://www.w3.org/2000/svg"}
    content = content_of(path)
    assert (content["n"], content["unit"], content["end"]) == (3, "steps", 4)
    assert content["places"] == ["data[0]", "data[1]", "data[2]"]
    assert len(content["messages"]) == 3 * 4
    first = content["messages"][0]
    assert first["end"] - first["begin"] == 1
    # Chunk 0 starts at rank 1 and is complete at rank 0.
    (complete,) = [
        event
        for event in content["events"]
        if event["rank"] == 0
        and content["values"][event["writes"][0][1]]["ranks"] == "7"
        and event["writes"][0][0] == 0
    ]
    assert content["values"][complete["writes"][0][1]]["text"] == "(0.0 + (1.0 + 2.0))"
    assert content["ranks"][0]["ops"][complete["op"]] == "recv_reduce data[0] from 2"
    ((rank, op),) = complete["from"]
    assert (rank, content["ranks"][rank]["ops"][op]) == (2, "send data[0] to 0")


@pytest.mark.parametrize("name", ["reduce_scatter=ring", "all_to_all=bruck", "gather=direct"])
def test_every_output_ends_with_what_its_collective_promises(name: str, tmp_path: Path) -> None:
    root = ["--root", "3"] if name == "gather=direct" else []
    content = content_of(page_of(tmp_path, name, "--nodes", "2,3", *root))
    last: dict[tuple[int, str], str] = {}
    for event in content["events"]:
        for place, value in event["writes"]:
            at = event["rank"], content["places"][place]
            last[at] = content["values"][value]["text"]
    if name == "reduce_scatter=ring":
        assert all(
            sorted(re.findall(r"(\d)\.(\d)", last[rank, "output[0]"]))
            == [(str(one), str(rank)) for one in range(5)]
            for rank in range(5)
        )
    elif name == "all_to_all=bruck":
        assert all(last[to, f"output[{of}]"] == f"{of}.{to}" for to in range(5) for of in range(5))
    else:
        assert {last[3, f"output[{of}]"] for of in range(5)} == {f"{of}.0" for of in range(5)}


def test_measured_times_stand_beside_predicted_ones(tmp_path: Path) -> None:
    job(tmp_path, (0, 5_000_000, 0, 0), late_rank=2, late_ns=70_000, probes=True)
    tuning = tmp_path / "tuning.json"
    numbers = dict.fromkeys(NUMBERS, 0.0) | {"scale_out_latency_us": 3.0, "scale_up_latency_us": 1}
    written = {"format": FORMAT, "layout": [2, 2], "cores_per_node": 4, "numbers": numbers}
    tuning.write_text(json.dumps(written | {"measurements": []}))
    options = ["--nodes", "2,2", "--trace", str(tmp_path), "--costs", str(tuning)]
    content = content_of(page_of(tmp_path, "all_reduce=mesh", *options))
    assert (content["unit"], content["end"]) == ("us", 6.0)
    measured = content["measured"]
    assert (measured["number"], measured["num_bytes"]) == (20, 40)
    # Rank r comes r us late, rank 2 70 more; all end 50 us after it, and waited until 10 us before.
    assert [one["begin"] for one in measured["ranks"]] == [0, 1, 72, 3]
    assert [one["waited"] for one in measured["ranks"]] == [114, 114, 72, 114]
    assert {one["end"] for one in measured["ranks"]} == {measured["end"]} == {124}


def test_times_are_those_of_a_preset(tmp_path: Path) -> None:
    options = ["--nodes", "1,1", "--preset", "office1", "--size", "1M"]
    content = content_of(page_of(tmp_path, "all_reduce=one_shot", *options))
    out = PRESETS["office1"].scale_out
    assert content["unit"] == "us" and "with office1," in content["about"]
    size = 1 / (1 + max(one["tile"] for one in content["messages"]))
    link_us = out.latency_us + out.wire_us_per_mib * size
    assert {round(one["end"] - one["begin"], 3) for one in content["messages"]} == {
        round(link_us, 3)
    }
    assert content["end"] > out.wire_us_per_mib


ACTS = """
const seen = [], title = () => document.querySelector("#detail h2").textContent;
const cell = (place, rank) => document.querySelectorAll(".cell")[4 * place + rank];
const future = () => document.querySelectorAll(".message.future").length;
cell(2, 1).dispatchEvent(new MouseEvent("mouseenter"));
seen.push(title());
document.querySelectorAll(".message")[0].dispatchEvent(new MouseEvent("mouseenter"));
seen.push(title(), future());
const slider = document.getElementById("slider");
slider.value = 2;
slider.dispatchEvent(new Event("input"));
seen.push(future());
cell(3, 0).dispatchEvent(new MouseEvent("click"));
seen.push(title(), document.querySelectorAll(".cell.chosen").length);
document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
seen.push(title(), future());
document.body.dataset.seen = JSON.stringify(seen);
"""
"""What somebody with a mouse and a keyboard does with the page of a ring of four ranks."""


def dom(path: Path, **state: object) -> str:
    """Return what the page is once its script has run, in the state of its address."""
    assert CHROMIUM is not None
    address = f"file://{path}#" + "&".join(f"{key}={value}" for key, value in state.items())
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    ran = subprocess.run(
        [CHROMIUM, *flags, "--enable-logging=stderr", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "CONSOLE" not in ran.stderr, ran.stderr  # an error of the script
    return ran.stdout


def count(page: str, name: str) -> int:
    return len(re.findall(rf'class="{name}[" ]', page))


@pytest.mark.nightly("plans")
@pytest.mark.timeout(900)
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
class TestInABrowser:
    """The page in Chromium, without a window."""

    def test_cell_says_whose_contributions_it_holds_and_which_op_put_them_there(
        self, tmp_path: Path
    ) -> None:
        page = page_of(tmp_path, "all_reduce=ring", "--nodes", "8")
        shown = dom(page, step=5, rank=2, place=5)
        assert "<h2>data[5] of rank 2 at 5</h2>" in shown
        assert "<b>ranks 0, 1, 2, 6, 7</b> (5 of 8)" in shown
        assert "written at 4 by rank 2, op 7: <code>recv_reduce data[5] from 1</code>" in shown
        assert "<li>rank 1, op 6: <code>send data[5] to 2</code></li>" in shown
        assert (count(shown, "cell"), count(shown, "message")) == (8 * 8, 8 * 14)
        assert count(shown, "message future") == 8 * 9
        assert count(dom(page, step=0), "message future") == 0, "the page opens with all of it"

    def test_ops_are_named_once_by_arrows_or_by_the_work_of_ranks(self, tmp_path: Path) -> None:
        for options in ([], ["--preset", "cloud25", "--size", "1M"]):
            shown = dom(page_of(tmp_path, "all_reduce=ring", "--nodes", "2x4", *options))
            assert ('transform="rotate(' in shown) != bool(options)
            assert ">send data[" in shown

    def test_mouse_slider_and_keys_step_and_show(self, tmp_path: Path) -> None:
        page = page_of(tmp_path, "all_reduce=ring", "--nodes", "4")
        page.write_text(page.read_text().replace("</html>", f"<script>{ACTS}</script></html>"))
        found = re.search(r'data-seen="(.*?)"', dom(page))
        assert found is not None
        assert json.loads(html.unescape(found[1])) == [
            "data[2] of rank 1 at 0",
            *("rank 0 to rank 1, from 0 to 1", 0),
            4 * 4,  # of 24 messages, after two of six steps
            *("data[3] of rank 0 at 2", 1),
            *("data[3] of rank 0 at 3", 4 * 3),
        ]

    def test_64_ranks_are_a_summary_and_one_chunk_is_drawn_rank_by_rank(
        self, tmp_path: Path
    ) -> None:
        page = page_of(tmp_path, "all_reduce=hierarchical", "--nodes", ",".join(["8"] * 8))
        shown = dom(page)
        assert count(shown, "message") == 2 * (8 + 8 * 7)
        assert "ranks 56-63" in shown
        alone = dom(page, focus=10, view="ranks")
        assert (count(alone, "cell"), count(alone, "message")) == (64, 2 * (8 * 7 + 7))

    def test_measured_times_are_on_the_scale_of_predicted_ones_or_stretched(
        self, tmp_path: Path
    ) -> None:
        job(tmp_path, (0, 0, 0), late_rank=1, late_ns=70_000)
        options = ["--nodes", "3", "--preset", "office1", "--trace", str(tmp_path)]
        page = page_of(tmp_path, "all_reduce=ring", *options)
        content = content_of(page)
        ratio = content["measured"]["end"] / content["end"]
        assert ratio > 2

        def bottom(what: str, shown: str) -> float:
            """Return how far down the last bar or the cursor, at the end of the plan, is."""
            if what == "cursor":
                (found,) = re.findall(r'id="cursor"[^>]* y1="([\d.]+)"', shown)
                return float(found) - 12
            bars = re.findall(r'class="measured"[^>]* y="([\d.]+)"[^>]* height="([\d.]+)"', shown)
            return max(float(y) + float(height) for y, height in bars) - 12

        for state, expected in (({}, ratio), ({"scale": "own"}, 1.0)):
            shown = dom(page, step=1 << 20, **state)
            found = bottom("measured", shown) / bottom("cursor", shown)
            assert found == pytest.approx(expected, rel=0.01)
