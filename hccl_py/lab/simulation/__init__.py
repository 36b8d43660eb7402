"""Collectives in virtual time: how long a call takes on given nodes and network.

    run           `simulate`, the function: start reading here
    topology      where ranks are      costs     of machine and network; presets
    fitting       costs from measurements
    plan_source   algorithm or plans   folding   ranks whose plans are alike
    programs      all of it as numbers, for `csrc/simulation`, which runs ranks in virtual time
    recorded      the calls of a job

`hccl-plan predict` and `hccl-plan calibrate` are its commands. No job imports it.
"""

from hccl_py.lab.simulation.costs import Costs as Costs
from hccl_py.lab.simulation.costs import LinkCosts as LinkCosts
from hccl_py.lab.simulation.run import Simulated as Simulated
from hccl_py.lab.simulation.run import simulate as simulate
from hccl_py.lab.simulation.topology import Topology as Topology
