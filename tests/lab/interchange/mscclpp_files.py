"""Small files as MSCCL++ reads them, written op by op."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


def end(text: str, size: int = 1) -> Json:
    """Return an end: `i0`, `o1` or `s2` of the GPU, `1:s2` of GPU 1, `*i0` of all at a switch."""
    if text[0] == "*":
        return {"switch_channel_id": "iso".index(text[1]), "index": int(text[2:]), "size": size}
    rank, _, place = text.rpartition(":")
    found = {"index": int(place[1:]), "size": size}
    return found | ({"remote": (int(rank), place[0])} if rank else {"type": place[0]})


def op(name: str, dst: str = "", src: str = "", **more: object) -> Json:
    """Return an op that moves; ends have spaces between them."""
    found: Json = {"name": name, "channel_type": "memory"}
    for key, texts in (("src_buff", src), ("dst_buff", dst)):
        if texts:
            found[key] = [end(one) for one in texts.split()]
    return found | more


def sync(name: str, *peers: int, channel: int = 0) -> Json:
    """Return a signal to peers, or a wait for them, on the first or second channel of each."""
    return {"name": name, "channel_type": "memory", "peers": peers, "channel": channel}


def document(
    collective: str, chunks: tuple[int, int], gpus: Sequence[Sequence[list[Json]]], **more: object
) -> Json:
    """Return a file; `gpus`: for each GPU the ops of its thread blocks."""
    n = len(gpus)
    everyone = [{"size": n, "ranks": list(range(n))}]
    return {
        "name": "test",
        "collective": collective,
        "protocol": "Simple",
        "inplace": False,
        "gpus": [
            {
                "id": me,
                "input_chunks": chunks[0],
                "output_chunks": chunks[1],
                "scratch_chunks": 8,
                "threadblocks": [_block(at, ops, n) for at, ops in enumerate(blocks)],
                "channels": [
                    {"channel_type": "memory", "connected_to": [*range(n)] * 2},
                    *(
                        {"channel_type": "switch", "buffer_type": one, "rank_groups": everyone}
                        for one in "iso"
                    ),
                ],
                "remote_buffers": [
                    {"rank": rank, "type": one, "access_channel_types": ["memory"]}
                    for rank in range(n)
                    for one in "iso"
                ],
                "semaphores": [{"init_value": 0}],
            }
            for me, blocks in enumerate(gpus)
        ],
    } | more


def _block(number: int, ops: list[Json], n: int) -> Json:
    # Channels and remote buffers count backwards here, so that numbers of the GPU are none of it.
    channels, buffers = [*range(2 * n)][::-1], [*range(3 * n)][::-1]

    def written(one: Json) -> Json:
        one = dict(one)
        if "peers" in one:
            first = n * one.pop("channel")
            one["channel_ids"] = [channels.index(first + peer) for peer in one.pop("peers")]
        if "ops" in one:
            one["ops"] = [written(inner) for inner in one["ops"]]
        for key in {"src_buff", "dst_buff"} & {*one}:
            one[key] = [_numbered(each, buffers) for each in one[key]]
        return one

    return {
        "id": number,
        "ops": [written(one) for one in ops],
        "channels": [
            {"channel_type": "memory", "channel_ids": channels},
            {"channel_type": "switch", "channel_ids": [0, 1, 2]},
        ],
        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": buffers}],
    }


def _numbered(one: Json, buffers: list[int]) -> Json:
    if "remote" not in one:
        return one
    rank, buffer = one["remote"]
    where = {"buffer_id": buffers.index(3 * rank + "iso".index(buffer))}
    return {key: value for key, value in one.items() if key != "remote"} | where
