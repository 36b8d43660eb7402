"""What hccl-py knows of the frameworks that reach it through torch.distributed.

guard        warns of ranks that train copies of a model which nothing keeps equal; read first
replicas     what a rank knows of its copy, and how ranks compare theirs
habana/      HCCL_HABANA_SHIM=1: programs for Gaudi, on the CPU
frameworks   which framework runs, whether it works alone, and what to write instead
accelerate, ignite, lightning, transformers
             `adapt` makes the framework know hccl; hccl_py._autoload calls it
jax          collectives inside of jax.jit, over a Communicator; tensorflow: in a tf.function
torchft      a process group for torchft

Only the last three import their framework. The others get, or look at, modules that the program
has imported.
"""
