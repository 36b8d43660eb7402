"""Verbs alone, without collectives: a message goes back and forth between two queue pairs.

python examples/03_ping_pong.py --device shm              both ends, in two processes of this host

On two hosts, with the same HCCL_SECRET on both:
python examples/03_ping_pong.py --listen 7000             the first one
python examples/03_ping_pong.py --connect FIRST:7000      the second one
"""

import argparse
import multiprocessing
import os
import time
from multiprocessing.connection import Client, Connection, Listener

from hccl_py.transport.verbs import (
    Access,
    CompletionQueue,
    Device,
    Opcode,
    ProtectionDomain,
    QueuePair,
    RecvRequest,
    SendRequest,
    State,
    Status,
)

NUM_TURNS = 1000
NUM_BYTES = 64


def ping_pong(provider: str, other_end: Connection, starts: bool) -> None:
    """Run one end. `other_end` carries the addresses of the queue pairs; the rest is verbs."""
    with Device(provider) as device:
        domain = ProtectionDomain(device)
        queue = CompletionQueue(device, capacity=16)
        outgoing, incoming = bytearray(NUM_BYTES), bytearray(NUM_BYTES)
        sends = domain.register(outgoing)
        receives = domain.register(incoming, Access.LOCAL_WRITE)

        pair = QueuePair(domain, queue)
        pair.modify(State.INIT)
        pair.post_recv(RecvRequest((receives.piece(),)))  # before the first message can arrive
        other_end.send_bytes(pair.address)
        pair.connect(other_end.recv_bytes(), timeout_s=30)

        begin = time.perf_counter()
        for turn in range(NUM_TURNS):
            if not starts:
                await_message(queue)
                assert incoming[0] == turn % 256
                pair.post_recv(RecvRequest((receives.piece(),)))
            outgoing[0] = turn % 256
            pair.post_send(SendRequest(Opcode.SEND, (sends.piece(),)))
            if starts:
                await_message(queue)
                assert incoming[0] == turn % 256  # it came back
                pair.post_recv(RecvRequest((receives.piece(),)))
        elapsed_us = (time.perf_counter() - begin) * 1e6

        # Neither end leaves before the other one has received its last message.
        other_end.send_bytes(b"done")
        other_end.recv_bytes()
        if starts:
            each_way_us = elapsed_us / NUM_TURNS / 2
            print(f"{provider}: {NUM_TURNS} turns, {each_way_us:.1f} us each way")


def await_message(queue: CompletionQueue) -> None:
    """Wait for a RECV to complete, and check the sends that complete meanwhile."""
    while True:
        for completion in queue.wait(timeout_s=30, max_completions=1):
            assert completion.status is Status.SUCCESS, completion
            if completion.opcode is Opcode.RECV:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="tcp", help="tcp, shm, zmq")
    parser.add_argument("--listen", type=int, metavar="PORT")
    parser.add_argument("--connect", metavar="HOST:PORT")
    options = parser.parse_args()
    if options.listen:
        with Listener(("", options.listen), authkey=os.environ["HCCL_SECRET"].encode()) as listener:
            ping_pong(options.device, listener.accept(), starts=False)
    elif options.connect:
        host, _, port = options.connect.rpartition(":")
        os.environ.setdefault("MASTER_ADDR", host)  # listen on the interface that leads there
        with Client((host, int(port)), authkey=os.environ["HCCL_SECRET"].encode()) as other_end:
            ping_pong(options.device, other_end, starts=True)
    else:
        here, there = multiprocessing.Pipe()
        child = multiprocessing.Process(target=ping_pong, args=(options.device, there, False))
        child.start()
        ping_pong(options.device, here, starts=True)
        child.join()


if __name__ == "__main__":
    main()
