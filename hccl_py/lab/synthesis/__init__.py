"""Makes plans for an uneven network: `hccl-plan synthesize`. No job imports this.

network       ranks, switches and link rates; network_file reads a matrix or a topology
bound         the least time of a collective, and the share of it that plans reach
regions       the same among many ranks
arborescence  the cheapest tree from a root
packing       trees that load all links evenly
symmetry      moves, where a network looks alike from many ranks
nearest       trees to be moved, on networks of ranks alone; growing: on others
moved         plans of trees that are moved to all roots
order         trees as plans: which rank sends which chunk when
synthesize    the best of packed trees and the algorithms of the table
"""
