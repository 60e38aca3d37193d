"""Trainings for fire drills, each of which says for itself where it begins and how far it is: the truth to hold a report to.

`GOOD` saves all it has. `BEGINS_AGAIN` saves nothing. `LOSES_DATA` and `LOSES_OPTIMIZER` forget to give the loader, or the
optimizer, to `run.prepare`.
"""

_TRAINING = """
import shoal.testing.light_torch
import time
import torch, shoal
torch.set_num_threads(1)
run = shoal.init(seed=1, checkpoint_every=4)
torch.manual_seed(0)
# 11 steps an epoch: no checkpoint (every 4) is at the end of one, where a lost order would not show
data = torch.utils.data.TensorDataset(torch.randn(44, 4), torch.randn(44, 1))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
PREPARE
if run.is_main:
    print("TRUTH begins", run.global_step, flush=True)
while not run.should_stop:
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)  # what a real model would take
        run.step(loss=loss.item())
        if run.is_main:
            print("TRUTH made", run.global_step, loss.item(), flush=True)
        if run.should_stop:
            break
run.finish()
"""

GOOD = _TRAINING.replace("PREPARE", "model, optimizer, loader = run.prepare(model, optimizer, loader)")
LOSES_DATA = _TRAINING.replace("PREPARE", "model, optimizer = run.prepare(model, optimizer)")
LOSES_OPTIMIZER = _TRAINING.replace("PREPARE", "model, loader = run.prepare(model, loader)")

BEGINS_AGAIN = """
import random, time, shoal
run = shoal.init()
draw = random.Random(3)
print("TRUTH begins", run.global_step, flush=True)
for _ in range(1000):
    time.sleep(0.05)
    value = draw.random()
    run.step(loss=value)
    print("TRUTH made", run.global_step, value, flush=True)
"""
