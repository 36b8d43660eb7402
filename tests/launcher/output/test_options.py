"""--redirects and --tee as torchrun reads them."""

import pytest

from hccl_py.launcher.output.options import OutputOptions, Route, parse_streams

OUT, ERR = 1, 2


@pytest.mark.parametrize("text", ["0", "1", "3", "0:1", "0:1,2:3,7:0"])
def test_streams_are_read_as_torchrun_reads_them(text: str) -> None:
    from torch.distributed.elastic.multiprocessing import Std

    theirs = Std.from_str(text)
    ours = OutputOptions(log_dir="logs", redirects=text, tee="7:0")
    for local_rank in range(8):
        expected = theirs if isinstance(theirs, Std) else theirs.get(local_rank, Std.NONE)
        for stream in (OUT, ERR):
            redirected = Route.SCREEN not in ours.route(local_rank, stream)
            assert redirected == (Std(stream) in expected)


@pytest.mark.parametrize("text", ["", "4", "x", "0:", ":1", "0:5", "0:1,", "1,2", "-1:1"])
def test_other_streams_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected 0 to 3 or LOCAL_RANK:0-3,..., got"):
        parse_streams(text)


def test_tee_goes_to_both_and_the_filter_only_to_the_file() -> None:
    options = OutputOptions("auto", "logs", redirects="1", tee="0:3", local_ranks_filter="0")
    assert options.route(0, OUT) == options.route(0, ERR) == Route.FILE | Route.SCREEN
    assert (options.route(1, OUT), options.route(1, ERR)) == (Route.FILE, Route(0))


def test_folder_alone_keeps_and_shows_everything() -> None:
    assert OutputOptions(log_dir="logs").route(5, OUT) == Route.FILE | Route.SCREEN
    assert OutputOptions().route(5, OUT) == Route.SCREEN
