"""Every step of the tutorial and of the fake cluster: its programs print what the page shows."""

import re
import shlex
from pathlib import Path

import pytest
from launching import launch
from tiers import by_night

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in ("tutorial", "fake-cluster")}
STEPS = [
    (name, command, shown)
    for name, page in PAGES.items()
    for command, shown in re.findall(
        r"^```sh\n(.*?)\n```\n.*?^```text\n(.*?)^```", page, re.S | re.M
    )
]


def test_every_command_of_a_page_shows_what_it_prints() -> None:
    assert len(STEPS) == sum(len(re.findall(r"^```sh", page, re.M)) for page in PAGES.values())


@pytest.mark.parametrize(("page", "command", "shown"), by_night("training", *STEPS))
def test_step_of_a_page_prints_what_it_shows(
    page: str, command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = re.findall(r"^```(?:python|toml)\n(# (\S+)\n.*?)^```", PAGES[page], re.S | re.M)
    for text, name in files:
        (tmp_path / name).write_text(text)
    variables, _, arguments = command.partition("hccl-launch")
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("=", 1))
    monkeypatch.chdir(tmp_path)
    done = launch(*shlex.split(arguments))
    printed = done.stdout + done.stderr
    assert [line for line in shown.splitlines() if line not in printed] == [], printed
