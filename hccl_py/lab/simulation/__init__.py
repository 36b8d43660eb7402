"""Collectives in virtual time: how long would it take, on these nodes, with this network?

    run           `simulate`, the function: start reading here
    topology      where ranks are      costs     what machine and network cost; presets
    fitting       costs from measurements
    plan_source   algorithm or plans   folding   whose plans are those of others, moved
    programs      all of it as numbers, for `csrc/simulation`, which runs ranks in virtual time
    recorded      the calls of a job

`hccl-plan predict` and `hccl-plan calibrate` are its commands. Nothing of it is imported by a job
that does not ask.
"""

from hccl_py.lab.simulation.costs import Costs as Costs
from hccl_py.lab.simulation.costs import LinkCosts as LinkCosts
from hccl_py.lab.simulation.run import Simulated as Simulated
from hccl_py.lab.simulation.run import simulate as simulate
from hccl_py.lab.simulation.topology import Topology as Topology
