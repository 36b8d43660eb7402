"""Plans for an uneven network, made for it: `hccl-plan synthesize`. No job imports this.

network       ranks, switches and link rates; network_file reads a matrix or a topology
bound         how fast a collective can be at most, and what plans reach of that
arborescence  the cheapest tree from a root
packing       trees that load all links alike
order         trees as plans: which rank sends which chunk when
synthesize    all of it, and the algorithms of the table as competitors
"""
