"""Rows of the table in docs/tables/torch.md: what a feature is, and what the page says of it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "tables" / "torch.md"

Check = Callable[..., Any]


@dataclass(frozen=True)
class Feature:
    """A row of the table.

    Attributes:
        section: heading under which it stands.
        name: what a user would look for.
        check: runs on every rank, with its rank and the world size; also with the backend's name
            if it makes the groups itself (`own_group`).
        covers: functions of torch.distributed that it calls.
        world_size: number of ranks.
        alone: computes in one process what the ranks should return, by rank, from the world size.
        differs: why what gloo returned, if it does, may be something else.
        tolerance: relative and absolute, of floating-point results.
        note: for the table.
        env: of the ranks.
    """

    section: str
    name: str
    check: Check
    covers: tuple[str, ...] = ()
    world_size: int = 2
    alone: Callable[[int], Sequence[Any]] | None = None
    differs: str = ""
    tolerance: float = 1e-5
    note: str = ""
    own_group: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file of its check."""
        return Path(self.check.__code__.co_filename)

    @property
    def test(self) -> str:
        """The test, as pytest spells it."""
        return f"{self.path.relative_to(ROOT)}::{self.check.__name__}"

    @property
    def key(self) -> str:
        """The test in the recording, wherever its folder lies."""
        return f"{self.path.name}::{self.check.__name__}"

    @property
    def batch(self) -> tuple[Any, ...]:
        """What the checks that share processes have in common."""
        return self.path, self.world_size, tuple(sorted(self.env.items()))


FEATURES: dict[str, Feature] = {}
"""By test; filled as test files are imported."""


_ROW = re.compile(r"^\| .*? \| `(?P<test>[^`]+)` \| (?P<gloo>.*?) \| .*\|$")
_VERSION = re.compile(r"gloo of torch (\d+\.\d+\.\d+)")


def documented() -> dict[str, str]:
    """Return what the page says of gloo, by test."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    found = (_ROW.match(line) for line in lines)
    return {match["test"]: match["gloo"] for match in found if match}


def documented_version() -> str:
    """Return the torch that gloo's column is of."""
    match = _VERSION.search(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else None
    return match[1] if match else ""
