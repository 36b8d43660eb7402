"""Files that do not fit are told apart, with a word about what to do."""

import json
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
from recorded import job

from hccl_py.observe.trace.main import main


def complaint(capsys: pytest.CaptureFixture[str], *paths: Path) -> str:
    assert main([*map(str, paths), "-o", str(paths[0].parent / "out.json")]) == 2
    assert not (paths[0].parent / "out.json").exists()
    return capsys.readouterr().err


def test_a_truncated_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = job(tmp_path, (0,))
    whole = path.read_bytes()
    for length in (0, 1, len(whole) // 3, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert f"{path.name}: is" in complaint(capsys, path)
    assert "cut off" in complaint(capsys, path)


def test_the_pickle_for_torch_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path, (0,))
    assert "torch_rank_* is for torchfrtrace" in complaint(capsys, tmp_path / "torch_rank_0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "no flight recorder"),
        ({"traceEvents": []}, "no flight recorder"),
        ({"format": "hccl flight recorder 99"}, "another version"),
        ({"format": "hccl flight recorder 1", "rank": "x"}, "expected 'rank' to be int"),
    ],
)
def test_other_json_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, message: str
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    assert message in complaint(capsys, path)


def test_missing_ranks_are_named_and_the_others_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = job(tmp_path, (0, 0, 0, 0))
    output = tmp_path / "out.json"
    assert main([str(paths[0]), str(paths[2]), "-o", str(output)]) == 0
    assert "no file of rank(s) 1, 3 of communicator default" in capsys.readouterr().out
    events = json.loads(output.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 2}


def test_a_field_that_lacks_or_is_of_another_type_never_ends_in_an_exception(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job(tmp_path, (0, 0))[0]
    whole = json.loads(path.read_text())
    for where in ((), ("communicators", 0), ("entries", 0)):
        record = reduce(getitem, where, whole)
        for key, value in tuple(record.items()):
            for other in (None, "x", [[]]):
                record[key] = other
                path.write_text(json.dumps(whole))
                assert main([str(path), "-o", str(tmp_path / "out.json")]) in (0, 1, 2)
            del record[key]
            path.write_text(json.dumps(whole))
            assert main([str(path), "-o", str(tmp_path / "out.json")]) in (0, 1, 2)
            record[key] = value
    capsys.readouterr()
