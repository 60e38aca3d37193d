"""A small BERT learns to guess hidden words. Batches are larger where sentences are short, and every sentence counts the same.

python train.py
shoal run --nproc 2 -- train.py
shoal training run masked-lm --accels 2 -f -- train.py

--initial-model takes a checkpoint of another run to fine-tune from.
"""

import argparse
import random

import torch
from data import PAD, hide, sentences, vocabulary

from shoal.train import Model, Params, Trainer
from shoal.train.data import Variable
from shoal.train.nn import TransformerEncoder, pad_sequences

BATCHES = {"<=10": 64, "<=20": 32, "<=64": 16}


class LanguageParams(Params):
    epochs = 4
    lr = 3e-3
    warmup = 0.1
    true_gradient = True
    keep_models = 2

    sentences: int = 1800
    dim: int = 48
    layers: int = 2
    heads: int = 4


class TinyBert(Model):
    def __init__(self, params, words):
        super().__init__(params)
        self.words = torch.nn.Embedding(words, params.dim, padding_idx=PAD)
        torch.nn.init.normal_(self.words.weight, std=0.1)
        self.encoder = TransformerEncoder(
            params.layers, params.dim, params.dim, params.heads, max_len=64, out_dropout=0.1
        )
        self.bias = torch.nn.Parameter(torch.zeros(words))

    def forward(self, seen, lengths):
        """Logits of every word at every place; words go in and out by the same vectors."""
        return self.encoder(self.words(seen), lengths) @ self.words.weight.T + self.bias


class LanguageTrainer(Trainer):
    def __init__(self, params):
        texts = sentences(params.sentences, seed=1)
        self.numbers = vocabulary(texts)
        self.train_set = [[self.numbers[word] for word in text] for text in texts]
        self.eval_set = [[self.numbers[word] for word in text] for text in sentences(200, seed=2)]
        super().__init__(params, TinyBert(params, len(self.numbers) + 2))

    def training_data(self):
        """Other words are hidden in every epoch; which ones follows from epoch and sentence, also after a restart."""
        return Variable(self.train_set, BATCHES, seed=self.params.seed, decode=self.hidden, collate=batch_of)

    def hidden(self, numbers):
        return hide(numbers, len(self.numbers) + 2)

    def train_batch(self, batch):
        loss, accuracy = self.guess(batch)
        return {"loss": loss, "figures": {"accuracy": accuracy}}

    def evaluation_data(self):
        """The same words are hidden every time."""
        draw = random.Random(3)
        hidden = [hide(text, len(self.numbers) + 2, draw) for text in self.eval_set]
        return torch.utils.data.DataLoader(hidden, batch_size=32, collate_fn=batch_of)

    def evaluate_batch(self, batch):
        loss, accuracy = self.guess(batch)
        return {"loss": loss, "accuracy": accuracy}

    def guess(self, batch):
        """Mean over sentences of the mean over what is hidden in each."""
        seen, lengths, targets = batch
        logits = self.model(seen, lengths).float()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        counts = (targets != -100).sum(1)
        right = (logits.argmax(2) == targets).sum(1)
        return (losses.sum(1) / counts).mean(), float((right / counts).mean())


def batch_of(samples):
    seen, lengths = pad_sequences([seen for seen, _ in samples], PAD)
    targets, _ = pad_sequences([targets for _, targets in samples], -100)
    return seen, lengths, targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=LanguageParams.epochs)
    parser.add_argument("--initial-model")
    args = parser.parse_args()
    trainer = LanguageTrainer(LanguageParams(epochs=args.epochs, initial_model=args.initial_model))
    outcome = trainer.fit()
    if trainer.run.is_main:
        seen, values = trainer.state.evaluations[-1]
        print(f"{outcome.reason} after {seen} sentences: {values}")


if __name__ == "__main__":
    main()
