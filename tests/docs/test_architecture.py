"""The pictures of docs/internals/architecture.md are those of the code."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_pictures_are_those_of_the_imports() -> None:
    made = runpy.run_path(str(ROOT / ".ci" / "architecture"))["pictures"]()
    drawn = {name: (ROOT / "docs" / "internals" / name).read_text() for name in made}
    assert made == drawn, "run .ci/architecture"
