"""A small classifier, as many tutorials write it: functions for training and testing, a main that calls them."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return F.log_softmax(self.layers(x), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()  # the weights move
        if batch_idx % args.log_interval == 0:
            print(f"epoch {epoch} [{batch_idx}/{len(train_loader)}] loss {loss.item():.4f}")


def test(model, device, test_loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for data, target in test_loader:
            right += (model(data.to(device)).argmax(1) == target.to(device)).sum().item()
    print(f"accuracy {right / len(test_loader.dataset):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--log-interval", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    x = torch.randn(320, 8)
    y = x[:, :3].argmax(1)
    train_loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    test_loader = DataLoader(TensorDataset(x, y), batch_size=64)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)

    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
