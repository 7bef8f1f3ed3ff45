"""transformers: a Trainer that wraps its model when it creates its optimizer.

The class `AdaTrainer` is the difference to plain PyTorch. It also saves models as the Trainer does.

    python examples/trainers/transformers_trainer.py
    torchrun --nproc-per-node 2 examples/trainers/transformers_trainer.py
"""

from typing import Any

import torch
from clicks import FIELDS, ROWS, click_data
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import autoada as aa


class AdaTrainer(Trainer):
    """A trainer on the parameter server."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            super().create_optimizer(*args, **kwargs)
            self.model = self.model_wrapped = aa.AdaModel(self.model, self.optimizer)
        return self.optimizer

    def _wrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        model = self.accelerator.prepare_model(model, evaluation_mode=True)
        model._is_accelerate_prepared = True  # the Trainer then adds no DistributedDataParallel
        return model

    def _save(self, *args: Any, **kwargs: Any) -> None:
        if self.args.should_save:
            wrapped, self.model = self.model, aa.unwrap(self.model)
            super()._save(*args, **kwargs)
            self.model = wrapped

    def get_train_dataloader(self) -> DataLoader[Any]:
        return aa.AdaDataLoader(super().get_train_dataloader())


def main(samples: int = 4096, epochs: int = 2, batch_size: int = 64) -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=ROWS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=FIELDS,
        hidden_dropout_prob=0.0,
    )
    data = [{"input_ids": ids, "labels": int(clicked)} for ids, clicked in click_data(samples)]
    options = TrainingArguments(
        optim="sgd",
        learning_rate=0.1,
        per_device_train_batch_size=batch_size,
        num_train_epochs=epochs,
        average_tokens_across_devices=False,  # it multiplies losses by the number of nodes
        save_strategy="no",
        use_cpu=True,
    )
    trainer = AdaTrainer(BertForSequenceClassification(config), options, train_dataset=data)
    trainer.train()
    return trainer.model


if __name__ == "__main__":
    main().close()
