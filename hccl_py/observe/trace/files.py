"""Reads the flight recorders of a job's ranks, with helpful errors for files that do not fit."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hccl_py.observe.dump_files import FORMAT

_KEYS = {"rank": int, "host": str, "pid": int, "communicators": list, "entries": list}
_COMMUNICATOR_KEYS = ("name", "rank", "world_size", "id", "boot_id", "clock")


class TraceError(Exception):
    """The files given do not make a trace; the message says which and why."""


class RankFile(NamedTuple):
    """The flight recorder of one rank."""

    path: Path
    rank: int  # of the process in the job
    content: dict[str, Any]  # the JSON


def read(paths: Sequence[Path]) -> list[RankFile]:
    """Read files of different ranks of one job, by rank; a folder stands for all its files.

    Raise TraceError if one is not a flight recorder, or two are of one rank or different jobs.
    """
    files = [_read(path) for path in _expanded(paths)]
    by_rank: dict[int, RankFile] = {}
    for file in files:
        other = by_rank.setdefault(file.rank, file)
        if other is not file:
            raise TraceError(
                f"{other.path} and {file.path} are both of rank {file.rank}: expected one file of "
                "each rank, all written at the same occasion"
            )
    _require_one_job(files)
    return [by_rank[rank] for rank in sorted(by_rank)]


def missing(files: Sequence[RankFile]) -> dict[str, list[int]]:
    """Return, by communicator, its ranks whose files are missing."""
    absent: dict[str, tuple[str, set[int]]] = {}
    for file in files:
        for one in file.content["communicators"]:
            everyone = one["name"], set(range(one["world_size"]))
            absent.setdefault(one["id"] or one["name"], everyone)[1].discard(one["rank"])
    return {name: sorted(ranks) for name, ranks in absent.values() if ranks}


def _expanded(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(path.glob("flight_recorder_rank_*.json"))
        if not inside:
            raise TraceError(f"{path}: there is no flight_recorder_rank_*.json in this folder")
        found += inside
    return found


def _read(path: Path) -> RankFile:
    text = path.read_bytes()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip())
        what = "is cut off at its end" if at_end and text.lstrip()[:1] == b"{" else "is not JSON"
        hint = ""
        if path.name.startswith("torch_rank_"):
            hint = "; torch_rank_* is for torchfrtrace, give flight_recorder_rank_*.json"
        raise TraceError(f"{path}: {what} ({error}){hint}") from None
    if problem := _problem(content):
        raise TraceError(f"{path}: {problem}")
    return RankFile(path, content["rank"], content)


def _problem(content: Any) -> str:
    if not isinstance(content, dict) or "format" not in content:
        return 'no flight recorder of hccl-py: expected an object with the key "format"'
    if content["format"] != FORMAT:
        return (
            f"expected format {FORMAT!r}, got {content['format']!r}: written by another version of "
            "hccl-py, use its hccl-trace"
        )
    for key, kind in _KEYS.items():
        if not isinstance(content.get(key), kind):
            return f"expected {key!r} to be {kind.__name__}, got {type(content.get(key)).__name__}"
    for one in content["communicators"]:
        absent = [key for key in _COMMUNICATOR_KEYS if key not in one]
        if absent:
            return f"a communicator without {', '.join(absent)}"
    for entry in content["entries"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("time_created_ns"), int):
            return "an entry without time_created_ns"
    return ""


def _require_one_job(files: Sequence[RankFile]) -> None:
    """Raise TraceError unless chains of common communicators join all files."""
    first, *others = files
    joined: set[str] = set()
    near = [first]
    while near:
        joined.update(*map(_ids, near))
        near = [file for file in others if _ids(file) & joined]
        others = [file for file in others if not _ids(file) & joined]
    if others:
        raise TraceError(
            f"{first.path} and {others[0].path} have no communicator in common: they are of "
            "different jobs, or of different starts of one that was restarted"
        )


def _ids(file: RankFile) -> set[str]:
    return {one["id"] for one in file.content["communicators"]} - {""}
