"""Plans as other programs write and read them: `hccl-plan export` and `hccl-plan import`.

msccl      MSCCL's XML, both ways
schedule   messages and work of each rank, as GOAL (LogGOPSim, ATLAHS) or Chakra traces (ASTRA-sim)
"""
