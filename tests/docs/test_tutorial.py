"""Every step of docs/tutorial.md: its programs, run by its commands, print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from launching import launch
from tiers import by_night

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
FILES = dict(re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", PAGE, re.S | re.M))
STEPS = re.findall(r"^```sh\n(.*?)\n```\n.*?^```text\n(.*?)^```", PAGE, re.S | re.M)
SUM, *OTHERS = STEPS


def test_every_command_of_the_tutorial_shows_what_it_prints() -> None:
    assert (
        len(STEPS)
        == len(re.findall(r"^```sh", PAGE, re.M))
        == len(re.findall(r"^## \d", PAGE, re.M))
    )


@pytest.mark.parametrize(("command", "shown"), [SUM, *by_night("training", *OTHERS)])
def test_step_of_the_tutorial_prints_what_the_page_shows(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(f"# {name}\n{text}")
    variables, _, arguments = command.partition("hccl-launch")
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("=", 1))
    monkeypatch.chdir(tmp_path)
    done = launch(*shlex.split(arguments))
    printed = done.stdout + done.stderr
    assert [line for line in shown.splitlines() if line not in printed] == [], printed
