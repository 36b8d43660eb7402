"""The Trainer of transformers over hccl.

hccl-launch --nproc 4 examples/frameworks/train_transformers.py
"""

import os
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

world_size = int(os.environ.get("WORLD_SIZE", "1"))
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    ddp_backend="hccl",
    average_tokens_across_devices=False,
    per_device_train_batch_size=32 // world_size,
    num_train_epochs=1,
    optim="sgd",
    learning_rate=0.1,
    report_to=[],
    save_strategy="no",
)
torch.manual_seed(0)
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
data = [{"input_ids": torch.randint(50, (8,)), "labels": torch.randint(2, ())} for _ in range(256)]
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
trainer.train()
print(trainer.evaluate())
weights = sum(each.abs().sum().item() for each in model.parameters())
print(f"rank {arguments.process_index}: weights {weights:.6f}")
