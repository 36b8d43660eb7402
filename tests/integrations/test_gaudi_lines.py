"""Lines with which programs for Gaudi begin do on a CPU what docs/frameworks/habana.md says."""

import json
from collections.abc import Sequence
from pathlib import Path

import gaudi_lines
import pytest
from gaudi_lines import Kind, Lines
from launching import launch

PROGRAM = """
import ast, contextlib, io, json, sys
given = json.loads(sys.argv[1])
space = {"_": None}
if "torch" in given["setup"]:
    exec(given["setup"], space)

def run(line):
    said, error, space["_"] = io.StringIO(), "", None
    with contextlib.redirect_stderr(said):
        for _ in range(2):  # what has no effect says so once
            try:
                try:
                    space["_"] = eval(line, space)
                except SyntaxError:
                    exec(line, space)
            except Exception as caught:
                error = f"{type(caught).__name__}: {caught}"
    return {"error": error, "said": said.getvalue()}

seen = []
for line, holds in given["lines"]:
    one = run(line)
    one["holds"] = not one["error"] and bool(eval(holds, space))
    seen.append(one)
print(json.dumps(seen))
"""
SETUP = """
import torch
model = torch.nn.Linear(4, 4)
values, ones = torch.rand(1, 2, 4, 4), torch.ones(4)

def trains(optimizer):
    before = model.weight.detach().clone()
    model(values).sum().backward()
    optimizer.step()
    return not before.equal(model.weight)
"""


def check(script: Path, rows: Sequence[Lines], setup: str = "") -> None:
    script.write_text(PROGRAM)
    every = [(line, row) for row in rows for line in row.lines]
    given = {"setup": setup, "lines": [(line, row.holds) for line, row in every]}
    ran = launch("--habana-shim", script, json.dumps(given))
    assert ran.returncode == 0, ran.stderr
    for (line, row), seen in zip(every, json.loads(ran.stdout.splitlines()[-1]), strict=True):
        if row.kind is Kind.ERROR:
            assert seen["error"].endswith(f": {row.means}"), (line, seen)
            assert "hccl-py's shim" in seen["error"], (line, seen)
        else:
            assert seen["holds"], (line, seen)
            assert seen["said"].count("has no effect on the CPU") == (row.kind is Kind.NOTHING)


def test_lines_of_torch_do_what_the_page_says(tmp_path: Path) -> None:
    check(tmp_path / "program.py", gaudi_lines.TORCH, SETUP)


def test_lines_of_tensorflow_do_what_the_page_says(tmp_path: Path) -> None:
    check(tmp_path / "program.py", gaudi_lines.TENSORFLOW)


@pytest.mark.nightly("jax_tensorflow")
def test_lines_that_need_tensorflow_do_what_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    check(tmp_path / "program.py", gaudi_lines.WITH_TENSORFLOW)


def test_page_has_the_table_of_the_lines() -> None:
    assert gaudi_lines.table() in gaudi_lines.PAGE.read_text()
