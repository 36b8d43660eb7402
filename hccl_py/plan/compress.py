"""Compression as a property of a plan's edges: the compressed messages, and the effects.

An edge is an op and one of its peers. A compressed edge carries an encoding, which loses precision.
If the sender kept the exact value, ranks would end with different bits. So engine and proof share a
rule: a compressed send from `data` stores there the values that its receivers decode. `input` is
read only, and no algorithm reads scratch again, so these stay as they are.

The communicator, not the plan, defines the encoding.
"""

from dataclasses import replace

from hccl_py.plan.language import Nodes, Op, OpKind, Plan


def compress_scale_out(plan: Plan, nodes: Nodes) -> Plan:
    """Compress the edges between nodes.

    A send to several peers is compressed for all of them or for none. A send to both kinds becomes
    two, the compressed one first, so its own node gets the values that the other nodes decode.
    `verify` proves whether an algorithm remains correct.
    """
    home = next(node for node in nodes if plan.rank in node)
    ops: list[Op] = []
    ends = [0]  # by k: the number of ops that replace the first k
    for op in plan.ops:
        elsewhere = tuple(peer for peer in op.peers if peer not in home)
        mates = tuple(peer for peer in op.peers if peer in home)
        if op.kind is OpKind.SEND and elsewhere and mates:
            ops.append(op._replace(peers=elsewhere, compressed=elsewhere))
            ops.append(op._replace(peers=mates))
        else:
            ops.append(op._replace(compressed=elsewhere))
        ends.append(len(ops))
    return replace(plan, ops=tuple(ops), steps=tuple(ends[step] for step in plan.steps))
