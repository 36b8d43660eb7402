"""Trains a tiny model with the Trainer of Optimum Habana, as on a Gaudi; prints its sum.

    gaudi_trainer_job.py BATCH_PER_RANK

The ranks together see the same batches as one process with as many samples in a batch.
"""

import sys

import torch
import torch.distributed as dist
from optimum.habana import GaudiConfig, GaudiTrainer, GaudiTrainingArguments
from transformers import BertConfig, BertForSequenceClassification

SAMPLES = 32


def samples() -> list[dict[str, torch.Tensor]]:
    """Return sentences of random words, in two classes."""
    torch.manual_seed(1)
    words = torch.randint(0, 64, (SAMPLES, 8))
    mask = torch.ones(8, dtype=torch.long)
    return [{"input_ids": each, "attention_mask": mask, "labels": each[0] % 2} for each in words]


def main(batch_per_rank: int) -> None:
    """Train for one epoch."""
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    arguments = GaudiTrainingArguments(
        output_dir="trained",
        use_habana=True,
        use_lazy_mode=False,
        ddp_backend="hccl",
        per_device_train_batch_size=batch_per_rank,
        num_train_epochs=1,
        learning_rate=1e-2,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    torch.manual_seed(dist.get_rank())  # DDP has to make the ranks' models equal
    model = BertForSequenceClassification(config)
    settings = GaudiConfig(use_fused_adam=True, use_fused_clip_norm=True)
    trainer = GaudiTrainer(
        model=model, gaudi_config=settings, args=arguments, train_dataset=samples()
    )
    trainer.train()
    summed = sum(each.detach().double().abs().sum().item() for each in model.parameters())
    print(f"model {summed:.6f} group {type(dist.group.WORLD).__name__} {dist.get_backend()}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
