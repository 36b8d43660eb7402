"""Plans for an uneven network, made for it: `hccl-plan synthesize`. No job imports this.

network       ranks, switches and link rates, from a matrix of --validate or a topology file
max_flow      maximum flow and minimum cut, in integers
bound         how fast a collective can be at most, and the cut that says so
arborescence  the cheapest tree from a root
packing       trees that load all links alike
order         trees as plans: which rank sends which chunk when
certificate   what plans load, as a share of the bound
synthesize    all of it, and the algorithms of the table as competitors
"""
