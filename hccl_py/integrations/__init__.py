"""Adapters for frameworks, most of which reach hccl-py through torch.distributed.

guard/       warns if ranks train copies of a model that drift apart; read first
habana/      HCCL_HABANA_SHIM=1: programs for Gaudi, on the CPU
frameworks   the framework in use, whether it treats a rank as alone, and the remedy
accelerate, ignite, lightning, optimum, transformers
             `adapt` makes the framework recognise hccl; hccl_py._autoload calls it
jax          collectives inside jax.jit, over a Communicator; tensorflow: in a tf.function
ray          the backend of ray.util.collective
torchft      a process group for torchft
vllm, vllm_communicator
             HCCL_REPLACE=gloo:all: vLLM's CPU workers; vLLM calls `register` by its entry point

Only the last five import their framework. The others read modules that the program has imported.
"""
