"""The program of a rank of `spawn`: calls the function and keeps what it returned."""

import linecache
import os
import pickle
import sys
from pathlib import Path


def main() -> None:
    """Run `FOLDER`; an exception is `worker.py`'s."""
    folder = Path(sys.argv[1])
    with open(folder / "call", "rb") as file:
        sys.path[:], cells = pickle.load(file)
        linecache.cache.update(cells)
        function, args, kwargs = pickle.load(file)
    returned = function(*args, **kwargs)
    from hccl_py.launcher.spawn.call import packed, result_file

    rank = int(os.environ["RANK"])
    try:
        result = packed(returned)
    except Exception as error:  # of any __reduce__
        raise TypeError(f"what rank {rank} returned cannot be pickled: {error}") from error
    path = result_file(folder, rank)
    path.with_suffix(".partial").write_bytes(result)
    path.with_suffix(".partial").rename(path)


if __name__ == "__main__":
    main()
