"""What communication adds to a step: the tables from recorded rounds, and one real run."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.overlap.__main__ import main
from benchmarks.overlap.contenders import CONTENDERS

_STEP_MS = {
    "digits": {"gloo": 17.0, "hccl": 12.5, "fast_ddp": 13.5, "gloo_fsdp2": 20.0, "fsdp2": 16.0},
    "transformer": {"gloo": 11.5, "hccl": 11.75, "fast_ddp": 10.6, "gloo_fsdp2": 17, "fsdp2": 20},
}
_SILENT_MS = {"none": 10.0, "silent_ddp": 11.0, "silent_fast_ddp": 10.5, "silent_fsdp2": 15.0}
_ROUNDS = [0.98, *[1.0] * 10, 1.02]


def _recorded() -> dict[str, Any]:
    results = [
        {
            "model": model,
            "ranks": 2,
            "start": start,
            "contender": name,
            "batch": 64,
            "gradient_bytes": 8_000_000,
            "steps_per_round": 4,
            "step_ms": [step * factor for factor in _ROUNDS],
            "cpu_ms": [step / 2] * len(_ROUNDS),
            "reduce_ms": [3.0] * len(_ROUNDS) if name in steps else [],
            "doubts": ["other programs used 30% of the cores"] if model == "transformer" else [],
        }
        for model, steps in _STEP_MS.items()
        for name, step in (_SILENT_MS | steps).items()
        for start in range(2)
    ]
    return {
        "command": "recorded",
        "machine": {"cpu": "a processor", "usable_cores": 2, "system": "Linux"},
        "versions": {"torch": "2"},
        "date": "today",
        "starts": 2,
        "seconds": 1.0,
        "nnodes": 1,
        "results": results,
        "failures": ["start 3 of 3, 2 ranks: rank 1 died"],
    }


def test_show_recorded_rounds_gives_exposed_times_and_says_where_hccl_loses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps(_recorded()))
    assert main(["--show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "# digits, 2 ranks, 64 samples each, 8.00 MB of gradients" in lines
    rows = {line.strip().partition("  ")[0]: line.split() for line in reversed(lines)}
    assert rows["DDP, gloo"][2:] == ["17.0", "(17.0-17.0)", "1.70x", "1.00x", "8.50", "3.00",
                                     "6.00", "(6.00-6.00)", "200%", "1.00"]  # fmt: skip
    assert rows["DDP, hccl"][2:] == ["12.5", "(12.5-12.5)", "1.25x", "1.36x", "6.25", "3.00",
                                     "1.50", "(1.50-1.50)", "50%", "0.25"]  # fmt: skip
    assert rows["FSDP2, hccl"][2:] == ["16.0", "(16.0-16.0)", "1.60x", "1.25x", "8.00", "3.00",
                                       "1.00", "(1.00-1.00)", "33%", "0.20"]  # fmt: skip
    assert rows["DDP, silent"][2:] == ["11.0", "(11.0-11.0)", "1.10x", "1.55x", "5.50"]
    assert "  not to be trusted: other programs used 30% of the cores" in lines
    losing = lines[lines.index("# Where hccl loses") + 1 :]
    assert [line.rpartition("gradients: ")[2] for line in losing[:5]] == [
        "fast_ddp, hccl: exposes 50% of gloo's time, more than 33%",
        "DDP, hccl: 0.98x gloo's speed; not to be trusted, see above",
        "DDP, hccl: exposes 150% of gloo's time, more than 33%; not to be trusted, see above",
        "FSDP2, hccl: 0.85x gloo's speed; not to be trusted, see above",
        "FSDP2, hccl: exposes 250% of gloo's time, more than 33%; not to be trusted, see above",
    ]
    assert losing[5:] == ["", "# What failed", "  start 3 of 3, 2 ranks: rank 1 died"]


@pytest.mark.nightly("bench")
def test_main_trains_with_every_contender_and_writes_its_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "overlap.json"
    wanted = ["--ranks", "2", "--batch", "1", "--starts", "1", "--seconds", "0.1"]
    wanted += ["--models", "transformer"]
    wanted += ["--load", "1"]
    assert main([*wanted, "--json", str(path), "--markdown"]) == 0
    assert not multiprocessing.active_children()
    results = json.loads(path.read_text())["results"]
    assert [each["contender"] for each in results] == [*CONTENDERS]
    assert all(len(each["step_ms"]) >= 3 and min(each["step_ms"]) > 0 for each in results)
    assert all(len(each["cpu_ms"]) == len(each["step_ms"]) for each in results)
    assert all(min(each["cpu_ms"]) > 0 for each in results)
    talking = {name for name, way in CONTENDERS.items() if way.silent}
    assert all(bool(each["reduce_ms"]) == (each["contender"] in talking) for each in results)
    out = capsys.readouterr().out
    assert "1 node, beside 1 busy process" in out
    assert "### transformer, 2 ranks, 1 sample each" in out and "## Where hccl loses" in out


def test_main_names_the_start_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--seconds", "0.001", "--timeout", "0.01"]
    assert main(["--ranks", "2", "--models", "transformer", "--starts", "1", *limits]) == 1
    out = capsys.readouterr().out
    assert "  start 1 of 1, 2 ranks: no answer from rank" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--models", "gpt"], "expected one or more of all, digits, transformer, got 'gpt'"),
        (["--ranks", "0"], "expected a whole number from 1 to 2147483647, got '0'"),
        (["--ranks", "3", "--nnodes", "2"], "--ranks: expected multiples of --nnodes 2, got 3"),
        (["--ranks", "1"], "--ranks: expected at least 2, got 1"),
        (["--seconds", "400"], "--timeout: expected more than --seconds for each model, got 600"),
        (["--json", "/nowhere/x.json"], "--json: there is no folder /nowhere"),
        (["--show", "/nowhere/x.json"], "--show: there is no file /nowhere/x.json"),
        (["--load", "many"], "--load: expected a whole number from 0 to 2147483647, got 'many'"),
        (["--rank", "2"], "unrecognized: --rank 2; is it --ranks?"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
