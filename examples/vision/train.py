"""Tell shapes in noisy images: a small CNN, with an average of its weights to evaluate and label smoothing.

python train.py
shoal run --nproc 2 -- train.py
shoal training run vision --accels 2 -f -- train.py
"""

import argparse

import torch
from data import SHAPES, Shapes

from shoal.train import Model, Params, Trainer
from shoal.train.nn import label_smoothing_loss


class VisionParams(Params):
    batch_size = 32
    epochs = 4
    lr = 4e-3
    warmup = 0.1
    decay = "cosine"
    ema = 0.98
    num_workers = 0
    keep_models = 2

    images: int = 1400
    channels: int = 16
    smoothing: float = 0.05


class SmallCNN(Model):
    def __init__(self, params):
        super().__init__(params)
        width = params.channels
        layers, before = [], 1
        for channels in (width, 2 * width, 4 * width):
            layers += [
                torch.nn.Conv2d(before, channels, 3, padding=1),
                torch.nn.GroupNorm(4, channels),
                torch.nn.GELU(),
            ]
            layers += [torch.nn.MaxPool2d(2)]
            before = channels
        self.features = torch.nn.Sequential(*layers)
        self.out = torch.nn.Linear(before, len(SHAPES))

    def forward(self, images):
        return self.out(self.features(images).amax((2, 3)))


class VisionTrainer(Trainer):
    def training_data(self):
        return Shapes(self.params.images, seed=1, augment=True)

    def evaluation_data(self):
        return Shapes(400, seed=2)

    def train_batch(self, batch):
        images, shapes = batch
        return label_smoothing_loss(self.model(images), shapes, self.params.smoothing)

    def evaluate_batch(self, batch):
        images, shapes = batch
        wrong = (self.model(images).argmax(1) != shapes).float()
        return {"error": wrong.mean()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=VisionParams.epochs)
    params = VisionParams(epochs=parser.parse_args().epochs)
    trainer = VisionTrainer(params, SmallCNN(params))
    outcome = trainer.fit()
    if trainer.run.is_main:
        seen, values = trainer.state.evaluations[-1]
        print(f"{outcome.reason} after {seen} images: {values}")


if __name__ == "__main__":
    main()
