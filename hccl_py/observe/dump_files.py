"""Files of the flight recorder: JSON for users and `hccl-trace`, a pickle for torch's analyser.

    flight_recorder_rank_3.json     everything
    torch_rank_3                    for `torchfrtrace FOLDER`: collectives, in torch's terms

Both replace the files of an earlier dump atomically, and only their owner may read them: call sites
and host names are private.
"""

import contextlib
import json
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hccl_py.transport.own_files import create_file, open_folder

FORMAT = "hccl flight recorder 1"
TORCH_VERSION = "2.10"
"""The version of torch's format in torch 2.13."""

_TORCH_STATES = {"submitted": "scheduled", "failed": "started"}

Dump = tuple[dict[str, Any], list[dict[str, Any]]]
"""The dump of one communicator: facts about itself, and its calls."""


def folder_of_failures() -> Path | None:
    """Return HCCL_TRACE_DIR; None: failures write no files."""
    folder = os.environ.get("HCCL_TRACE_DIR", "")
    return Path(folder) if folder else None


def default_folder() -> Path:
    """Return the folder of dumps that name none."""
    return folder_of_failures() or Path(tempfile.gettempdir()) / f"hccl_trace_{os.getuid()}"


def write(folder: Path, rank: int, reason: str, dumps: Sequence[Dump]) -> Path:
    """Write both files of one rank of the job, with a dump for each communicator.

    The folder is created for this user only, if necessary. Return the path of the JSON. Raise
    OSError for a full disk, another user's folder, ...
    """
    whole = content(rank, reason, dumps)
    path = folder / f"flight_recorder_rank_{rank}.json"
    descriptor = open_folder(folder, 0o700)
    try:
        _check_owner(folder, descriptor)
        _replace(descriptor, path.name, json.dumps(whole).encode())
        torch = pickle.dumps(for_torch(whole), protocol=4)
        _replace(descriptor, f"torch_rank_{rank}", torch)
    finally:
        os.close(descriptor)
    return path


def content(rank: int, reason: str, dumps: Sequence[Dump]) -> dict[str, Any]:
    """Return the content of a rank's JSON file."""
    headers = [header for header, _ in dumps]
    # All calls of the process are numbered in order, including dropped ones.
    forgotten = sum(entries[0]["op_id"] for _, entries in dumps if entries)
    calls = [entry for _, entries in dumps for entry in entries]
    calls.sort(key=lambda entry: int(entry["time_created_ns"]))
    return {
        "format": FORMAT,
        "version": TORCH_VERSION,
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "reason": reason,
        "written_ns": time.time_ns(),
        "pg_config": {  # for torch: only communicators whose ranks in the job are known
            one["name"]: {
                "name": one["name"],
                "desc": one["description"],
                "ranks": str(list(one["global_ranks"])),
            }
            for one in headers
            if one["global_ranks"] is not None
        },
        "communicators": headers,
        "entries": [{"record_id": id_, **call} for id_, call in enumerate(calls, forgotten)],
    }


def _check_owner(folder: Path, descriptor: int) -> None:
    if folder_of_failures() is not None or folder.parent != Path(tempfile.gettempdir()):
        return  # the user's own choice
    status = os.fstat(descriptor)
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{folder} belongs to another user; set HCCL_TRACE_DIR to a folder of your own"
        )


def _replace(folder: int, name: str, content: bytes) -> None:
    """Replace a file atomically; only its owner may read it."""
    partial = f".writing-{os.urandom(8).hex()}"
    try:
        with os.fdopen(create_file(folder, partial), "wb") as file:
            file.write(content)
        os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise


def for_torch(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the content for torch's analyser.

    Transfers are left out: the analyser pairs them by the number of a collective, and would report
    false mismatches.
    """
    entries = [
        {**entry, "state": _TORCH_STATES.get(entry["state"], entry["state"])}
        for entry in whole["entries"]
        if not entry["is_p2p"] and entry["process_group"][0] in whole["pg_config"]
    ]
    return {**whole, "entries": entries}
