"""Adapters for frameworks, most of which reach hccl-py through torch.distributed.

guard        warns of ranks that train copies of a model which nothing keeps equal; read first
replicas     facts about a rank's copy, and the comparison between ranks
habana/      HCCL_HABANA_SHIM=1: programs for Gaudi, on the CPU
frameworks   which framework runs, whether it works alone, and the remedy
accelerate, ignite, lightning, transformers
             `adapt` makes the framework know hccl; hccl_py._autoload calls it
jax          collectives inside of jax.jit, over a Communicator; tensorflow: in a tf.function
torchft      a process group for torchft

Only the last three import their framework. The others read modules that the program has imported.
"""
