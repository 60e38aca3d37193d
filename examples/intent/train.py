"""Find out what a sentence wants: a TextCNN over words. Runs alone or on several workers, unchanged:

python train.py
shoal run --nproc 2 -- train.py
shoal training run intent --accels 2 -f -- train.py
"""

import argparse

import torch
from data import INTENTS, Vocabulary, samples

from shoal.train import Model, Params, Predictor, Trainer
from shoal.train.data import Small
from shoal.train.measure import scores
from shoal.train.nn import Dense, TextCNN, pad_sequences


class IntentParams(Params):
    batch_size = 16
    epochs = 2
    lr = 2e-3
    warmup = 0.1
    keep_models = 2
    train_samples = 3000

    eval_samples: int = 500
    embedding: int = 32
    kernels: list[int] = [2, 3, 4]
    channels: int = 32
    dropout: float = 0.3


class IntentModel(Model):
    def __init__(self, params, words):
        super().__init__(params)
        self.embedding = torch.nn.Embedding(words, params.embedding, padding_idx=0)
        self.cnn = TextCNN(params.kernels, 1, params.channels, dim=params.embedding, dropout=params.dropout)
        self.out = Dense(torch.nn.Linear(len(params.kernels) * params.channels, len(INTENTS)), activation=None)

    def forward(self, words):
        return self.out(self.cnn(self.embedding(words)))


class IntentTrainer(Trainer):
    def __init__(self, params):
        self.train_set = samples(params.train_samples, seed=1)
        self.eval_set = samples(params.eval_samples, seed=2)
        self.vocabulary = Vocabulary(words for words, _ in self.train_set)
        super().__init__(params, IntentModel(params, len(self.vocabulary)))

    def batch(self, chosen):
        words, _ = pad_sequences([self.vocabulary.numbers(words) for words, _ in chosen])
        return words, torch.tensor([intent for _, intent in chosen])

    def training_data(self):
        return Small(self.train_set, self.params.batch_size, seed=self.params.seed, collate=self.batch)

    def train_batch(self, batch):
        words, intents = batch
        return torch.nn.functional.cross_entropy(self.model(words), intents)

    def evaluate(self):
        """Evaluate on one worker; the others wait for it."""
        wanted, found = [], []
        for at in range(0, len(self.eval_set), 64):
            words, intents = self.batch(self.eval_set[at : at + 64])
            wanted += intents.tolist()
            found += self.model(words.to(self.run.device)).argmax(1).tolist()
        result = scores(wanted, found)
        return {"error": 1 - result.weighted_f, "accuracy": result.accuracy, "kappa": result.kappa}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=IntentParams.epochs)
    params = IntentParams(epochs=parser.parse_args().epochs)
    trainer = IntentTrainer(params)
    outcome = trainer.fit()
    if trainer.run.is_main:
        seen, values = trainer.state.evaluations[-1]
        print(f"{outcome.reason} after {seen} samples: {values}")
        predictor = Predictor.load(IntentModel(params, len(trainer.vocabulary)), trainer.run.output_dir)
        for text in ("hello is there a plane to hanoi tomorrow", "do i need a coat in oslo"):
            number = predictor(trainer.vocabulary.numbers(text.split())[None]).argmax()
            print(f"{text!r} → {INTENTS[number]}")


if __name__ == "__main__":
    main()
