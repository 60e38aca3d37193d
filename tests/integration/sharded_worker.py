"""One rank of the tests of sharded training: `sharded_worker.py SETTINGS`, a JSON object.

Trains a small GPT with dropout off on a loader that shuffles, and writes down what this rank saw and holds at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import parallel_models as models
import torch
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.sdk import setup
from shoal.sdk.saving import parts


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    start = torch.randint(models.VOCABULARY, (48, 1), generator=generator)
    ids = (start + 7 * torch.arange(models.LENGTH + 1)) % models.VOCABULARY
    return TensorDataset(ids[:, :-1], ids[:, 1:], torch.arange(48))


def die_in_save(step: int) -> None:
    """End this rank without any cleanup when it has written a part of its file, in the save of that step."""
    real = parts.write_part

    def write(path: Path, mine: Any, of: Any) -> Any:
        if f"-{step:09d}-" in path.parent.name:
            some = dict(list(mine.items())[: len(mine) // 2])
            real(path, some, of)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(path, mine, of)

    parts.write_part = write


def see_own_folder_only() -> None:
    """Let this rank not find the folder of rank 0, as on another machine."""
    real = setup.find_places

    def find(directory: Path, rank: int, session: str, gather: Any) -> Any:
        def gathered(value: Any) -> list[Any]:
            return [Path("/nowhere") if rank and isinstance(one, str) else one for one in gather(value)]

        return real(directory, rank, session, gathered)

    setup.find_places = find


class GPT(models.GPT):
    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.1)
        elif isinstance(module, torch.nn.MultiheadAttention):
            module._reset_parameters()


def main(settings: dict[str, Any]) -> None:
    if settings.get("apart"):
        see_own_folder_only()
    run = shoal.init("sharded", seed=5, checkpoint_every_s=None, dir=settings["dir"], **settings.get("init", {}))
    if run.rank == settings.get("dies"):
        die_in_save(settings["in_save_of"])
    torch.manual_seed(run.rank)  # all ranks must start from the weights of rank 0
    with shoal.empty_model() if settings.get("empty") else contextlib.nullcontext():
        model = models.hf_model(settings["hugging_face"]) if "hugging_face" in settings else GPT()
    if settings.get("weights"):
        shoal.read_weights(model, settings["weights"])
    optimizer = models.two_groups(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    mesh = settings.get("init", {}).get("mesh") or {}
    shares = run.world_size // (mesh.get("tp", 1) * mesh.get("cp", 1))
    loader = DataLoader(data(), batch_size=settings.get("batch", 24) // shares, shuffle=True)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    losses, seen = [], []
    for x, y, index in run.loop(loader, epochs=settings.get("epochs", 4)):
        output = model(x)
        loss = models.cross_entropy(getattr(output, "logits", output), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.step(loss=loss)
        losses.append([loss.item(), float(getattr(norm, "full_tensor", lambda: norm)())])  # noqa: B023
        seen.append([run.global_step, index.tolist()])
        if run.global_step % 2:  # a save that is still being written would let the next one be skipped
            run._training._setup.saver.wait_idle()
    run.checkpoint(wait=True)
    held = [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]
    torch.save({"losses": losses, "seen": seen, "held": held}, Path(settings["out"]).with_suffix(f".{run.rank}"))
    run.finish()


main(json.loads(sys.argv[1]))
