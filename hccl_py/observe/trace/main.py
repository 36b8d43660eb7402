"""The command `hccl-trace`: flight recorders of all ranks in, one timeline out."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hccl_py.command_line import until_reader_ends
from hccl_py.observe.trace.clocks import REFERENCE, Offset, offsets
from hccl_py.observe.trace.files import RankFile, TraceError, missing, read
from hccl_py.observe.trace.timeline import Timeline


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    return until_reader_ends(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    try:
        files = read(options.files)
        apart = offsets(files)
        trace = Timeline(files, apart).trace()
        options.output.write_text(json.dumps(trace))
        _report(files, apart, options.output)
    except BrokenPipeError:
        raise
    except (TraceError, OSError) as error:
        problem = (
            f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        )
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        named = ", ".join(map(str, options.files))
        problem = f"{named}: expected what hccl-py writes, got a record with {error!r}"
    else:
        return 0
    print(f"hccl-trace: {problem}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hccl-trace",
        description="Make one timeline of the flight recorders of all ranks.",
        epilog="Open the result at https://ui.perfetto.dev or in chrome://tracing.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILES",
        help="flight_recorder_rank_*.json of one job, or the folder that holds them",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("trace.json"), help="default: trace.json"
    )
    return parser


def _report(files: Sequence[RankFile], apart: Sequence[Offset], output: Path) -> None:
    num_calls = sum(len(file.content["entries"]) for file in files)
    print(f"{output}: {len(files)} ranks, {num_calls} calls")
    for name, ranks in missing(files).items():
        print(f"  no file of rank(s) {', '.join(map(str, ranks))} of communicator {name}")
    for file, offset in zip(files, apart, strict=True):
        if offset is REFERENCE:
            continue
        error = "" if offset.error_ns is None else f" +- {offset.error_ns / 1000:.1f}"
        print(
            f"  rank {file.rank}: clock moved by {offset.offset_ns / 1000:.1f}{error} us, by "
            f"{offset.source}"
        )
    for file in files:
        reason = str(file.content.get("reason", ""))
        if reason.startswith("failure"):
            print(f"  rank {file.rank}: {reason}")
