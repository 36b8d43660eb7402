"""What a node finds out alone before an elastic job, without importing torch."""

from __future__ import annotations

from pathlib import Path

from launching import COMMAND, run

from hccl_py.launcher.exit_codes import CHECK_FAILED


def test_too_few_descriptors_end_the_start(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    (tmp_path / "torch.py").write_text("raise AssertionError('it is slow')")
    job = ("--nnodes", "2:4", "--nproc", 10, "--rdzv-endpoint", "127.0.0.1:29400")
    ended = run(
        *("sh", "-c", 'ulimit -n 50; PYTHONPATH="$0" exec "$@"', tmp_path),
        *(*COMMAND, *job, script),
    )
    assert ended.returncode == CHECK_FAILED, ended.stderr
    assert ": lets a process open 50 files; a rank of 40 opens " in ended.stderr
    assert "it is slow" not in ended.stderr
