"""Collectives in virtual time: how long would it take, on these nodes, with this network?

    run           `simulate`, the function: start reading here
    topology      where ranks are      costs   what machine and network cost
    presets       costs of well-known machines
    candidate     algorithm or plans   folding one node stands for all nodes that are alike
    programs      steps with costs     parts   wires, lanes, channels, ranks
    virtual_time  runs the steps       steady  tiles that repeat themselves are counted only
    command       `hccl-plan predict`

Nothing of it is imported by a job that does not ask.
"""

from hccl_py.simulation.costs import Costs as Costs
from hccl_py.simulation.costs import LinkCosts as LinkCosts
from hccl_py.simulation.run import Simulated as Simulated
from hccl_py.simulation.run import simulate as simulate
from hccl_py.simulation.topology import Topology as Topology
