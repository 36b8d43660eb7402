"""An engine of vLLM on this host's CPUs: TENSOR_PARALLEL PIPELINE_PARALLEL [gloo].

Its model is a tiny Llama with random weights. It prints `{"workers": [pid, ...]}`. For each number
on a line of stdin it then generates as many tokens for each of two prompts, and prints them with
the seconds that they took and the CPU seconds of all its processes, or the error.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from vllm import LLM, SamplingParams
from vllm.v1.worker.cpu_worker import CPUWorker

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPTS: Any = [{"prompt_token_ids": ids} for ids in ([1, 5, 9, 33, 7], [1, 100, 200, 300])]


class GlooWorker(CPUWorker):  # type: ignore[misc]
    """A worker without vLLM's own shared memory, whose collectives are torch.distributed's."""

    def init_device(self) -> None:
        """Make its groups, without shared memory."""
        from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False
        super().init_device()


def engine(tensor_parallel: str, pipeline_parallel: str, *backend: str) -> LLM:
    """Start it."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA))
        return LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            tensor_parallel_size=int(tensor_parallel),
            pipeline_parallel_size=int(pipeline_parallel),
            worker_cls="vllm_engine.GlooWorker" if backend else "auto",
            dtype="float32",
            max_model_len=512,
            max_num_seqs=4,
            # Eagerly vLLM skips the warm-up that a pipeline needs on CPUs, with any backend.
            enforce_eager=pipeline_parallel == "1",
            compilation_config={"mode": 2, "backend": "eager"},  # traced once, nothing compiled
            kv_cache_memory_bytes=64 << 20,
            disable_log_stats=True,
        )


def generate(llm: LLM, count: int) -> dict[str, Any]:
    """Return so many tokens of each prompt, and what they took."""
    sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    began_s, before_s = time.perf_counter(), cpu_s()
    answers = llm.generate(PROMPTS, sampling, use_tqdm=False)
    took_s, used_s = time.perf_counter() - began_s, cpu_s() - before_s
    tokens = [list(each.outputs[0].token_ids) for each in answers]
    return {"tokens": tokens, "seconds": took_s, "cpu_s": used_s}


def cpu_s() -> float:
    """Return the CPU seconds of all processes of this engine."""
    every = (psutil.Process(), *psutil.Process().children(recursive=True))
    return float(sum(each.cpu_times().user + each.cpu_times().system for each in every))


def workers() -> list[int]:
    """Return their process ids, by rank."""
    titled = {each.cmdline()[0]: each.pid for each in psutil.Process().children(recursive=True)}
    return [pid for title, pid in sorted(titled.items()) if title.startswith("VLLM::Worker")]


if __name__ == "__main__":
    llm = engine(*sys.argv[1:])
    print(json.dumps({"workers": workers()}), flush=True)
    for line in sys.stdin:
        try:
            answer = generate(llm, int(line))
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)
