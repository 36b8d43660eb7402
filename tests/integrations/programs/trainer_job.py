"""Trains a tiny BERT with the Trainer of transformers; prints its parameters."""

import sys
import tempfile

import torch
from accelerate import PartialState
from torch import distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

kind = sys.argv[1]
if kind == "group":
    dist.init_process_group("hccl")
if kind == "unpatched":  # the trap: Accelerate, below, believes it is one process
    PartialState._prepare_backend = PartialState._prepare_backend.__wrapped__
own = {"ddp_backend": "hccl"} if kind in ("backend", "deepspeed", "unpatched") else {}
if kind in ("cpu", "group"):
    own["use_cpu"] = True
if kind.startswith("deepspeed"):
    zero = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 1}}
    own["deepspeed"] = zero
arguments = TrainingArguments(
    tempfile.mkdtemp(), max_steps=8, per_device_train_batch_size=4, report_to=[], **own
)
torch.manual_seed(0)
config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
data = [{"input_ids": torch.randint(50, (8,)), "labels": torch.randint(2, ())} for _ in range(256)]
model = BertForSequenceClassification(config)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
num_batches = len(trainer.get_train_dataloader())
assert num_batches == len(data) // 4 // dist.get_world_size(), "each rank has all data"
total = sum(parameter.double().sum().item() for parameter in model.parameters())
print(f"model {total!r} group {type(dist.group.WORLD).__name__} {dist.get_backend()}", flush=True)
