"""The options of hccl's commands in all pages are those of their help."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tiers import by_night

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
COMMAND = re.compile(r"hccl-(?:launch|bench|config|perftest|trace|plan \w+)\b")
OF_GAUDI = {"--world_size", "--use_mpi"}
"""Options of gaudi_spawn.py that hccl-launch accepts and does not list."""


def used_options() -> dict[str, dict[str, str]]:
    """Return the options of each command, with a page that has each."""
    used: dict[str, dict[str, str]] = defaultdict(dict)
    for page in PAGES:
        text = page.read_text()
        fences = re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.S | re.M)
        inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
        for line in [*inline, *(line for fence in fences for line in fence.splitlines())]:
            if not re.match(r"(?:\$ |[A-Z_]+=\S+ )*hccl-", line):
                continue
            for command in COMMAND.finditer(line):
                words = COMMAND.split(line[command.end() :])[0].split("#")[0].split()
                end = next((at for at, word in enumerate(words) if ".py" in word), len(words))
                options = [word.split("=")[0] for word in words[:end] if word.startswith("--")]
                used[command[0]] |= dict.fromkeys(options, page.relative_to(ROOT).as_posix())
    return used


USED = used_options()


OFTEN = [command for command in ("hccl-bench", "hccl-launch") if command in USED]


@pytest.mark.parametrize("command", [*OFTEN, *by_night("plans", *sorted(set(USED) - set(OFTEN)))])
def test_options_of_a_command_in_the_pages_are_in_its_help(command: str) -> None:
    program, *words = command.split()
    script = Path(sys.executable).parent / program
    done = subprocess.run([script, *words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r"--[\w-]+", done.stdout)) | OF_GAUDI
    wrong = {option: page for option, page in USED[command].items() if option not in known}
    assert wrong == {}
