"""Trains a tiny Llama that transformers shards with tp_plan="auto"; prints its last loss."""

import tempfile

import torch
from torch import distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig

config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
words = torch.randint(64, (4, 8), generator=torch.Generator().manual_seed(1))
for _ in range(6):
    optimizer.zero_grad()
    loss = model(words, labels=words).loss
    loss.backward()
    optimizer.step()
sizes = [getattr(each, "to_local", lambda each=each: each)().numel() for each in model.parameters()]
whole = sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
assert sum(sizes) < whole, "a rank has the whole model"
group = f"{type(dist.group.WORLD).__name__} {dist.get_backend()}"
print(f"model {loss.item()!r} group {group}", flush=True)
