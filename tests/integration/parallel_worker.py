"""One worker of the parallelism tests: runs the scenarios named on its command line, rank 0 writes what came out.

RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python parallel_worker.py RESULTS SCENARIO…
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import parallel_models as models
import torch
import torch.distributed as dist
from torch import nn

from shoal.core.errors import ShoalError
from shoal.sdk import misuse_checks
from shoal.sdk.device import choose_device
from shoal.sdk.parallel import Parallel, make
from shoal.sdk.parallel.tuning import Tuning
from shoal.sdk.ranks.group import close_group, object_group, store

STEPS = 20
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Context:
    rank, local_rank, world_size = RANK, int(os.environ["LOCAL_RANK"]), WORLD


def start(way: str, mesh: dict[str, int] | None, model: nn.Module) -> tuple[Parallel, nn.Module, torch.optim.Optimizer]:
    optimizer = models.two_groups(model)
    parallel = make(way, mesh, Context(), choose_device(Context.local_rank, "cpu"))
    wrapped = parallel.wrap(model)
    parallel.adopt(wrapped, optimizer)
    return parallel, wrapped, optimizer


def mean_over_ranks(values: list[float]) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total, group=object_group())
    return (total / WORLD).tolist()


def from_first(value: Any) -> Any:
    box = [value]
    dist.broadcast_object_list(box, 0, group=object_group())
    return box[0]


def differs_between_ranks(tensors: dict[str, torch.Tensor]) -> list[str]:
    first = from_first(tensors)
    wrong: list[Any] = [None] * WORLD
    mine = [name for name, tensor in tensors.items() if not torch.equal(tensor, first[name])]
    dist.all_gather_object(wrong, mine, group=object_group())
    return sorted({name for names in wrong for name in names})


def curve(way: str, mesh: dict[str, int] | None = None) -> dict[str, Any]:
    """Train; take the full state; train on; load the state; train the same steps again."""
    # Different weights on each rank: all must start from rank 0's.
    torch.manual_seed(RANK)
    parallel, model, optimizer = start(way, mesh, models.GPT())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    share = (parallel.data_rank, parallel.data_world)
    losses = models.train(model, optimizer, STEPS, *share)
    state = parallel.full_state(model, [optimizer])
    state = from_first(state)
    # Loading hands the state's tensors over to the optimizer.
    kept = copy.deepcopy(state)
    with torch.no_grad():
        logits = model(next(models.batches(1))[0])
    on = models.train(model, optimizer, 4, *share, skip=STEPS)
    parallel.load(model, [optimizer], *state)
    again = models.train(model, optimizer, 4, *share, skip=STEPS)
    shared = {name: param.detach() for name, param in model.named_parameters() if "blocks" not in name}
    return {
        "losses": mean_over_ranks(losses),
        "on": mean_over_ranks(on),
        "again": mean_over_ranks(again),
        "state": kept,
        "logits": logits,
        "drifted": differs_between_ranks(shared) if way == "pipeline" or (mesh and "pipeline" in mesh) else [],
        "share": share,
        "held": sum(getattr(param, "_local_tensor", param).numel() for param in model.parameters()),
        "live": parallel.live_state(model, [optimizer]) is not None,
    }


def hugging_face(kind: str, way: str, mesh: dict[str, int] | None = None) -> dict[str, Any]:
    torch.manual_seed(0)
    parallel, model, optimizer = start(way, mesh, models.hf_model(kind))
    share = (parallel.data_rank, parallel.data_world)
    losses = mean_over_ranks(models.hf_train(model, optimizer, models.hf_batches(6, *share)))
    state = parallel.full_state(model, [optimizer])
    model.eval()
    with torch.no_grad():
        output = model(**next(models.hf_batches(1)))
    return {"losses": losses, "state": state and state[0], "logits": output.logits, "kind": type(output).__name__}


def pipeline_of(make_model: Callable[[], nn.Module], **mesh: int) -> dict[str, Any]:
    torch.manual_seed(0)
    parallel, model, optimizer = start("pipeline", {"pipeline": WORLD, **mesh}, make_model())
    losses = models.train(model, optimizer, 6)
    return {"losses": losses, "state": parallel.full_state(model, [optimizer])}


def accumulation(way: str, told: bool, mesh: dict[str, int] | None = None) -> dict[str, Any]:
    """Two halves of each batch; `told`: the exchange is switched off for the first of them."""
    torch.manual_seed(0)
    parallel, model, optimizer = start(way, mesh, models.GPT(depth=2))
    losses = []
    for x, y in models.batches(4, parallel.data_rank, parallel.data_world):
        half = len(x) // 2
        for index, part in enumerate((slice(0, half), slice(half, None))):
            parallel.sync_gradients(model, not told or index == 1)
            loss = models.cross_entropy(model(x[part]), y[part]) / 2
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"state": parallel.full_state(model, [optimizer])}


def dropout(mesh: dict[str, int]) -> dict[str, Any]:
    """Processes that compute the same values must drop the same ones, whatever the script has seeded."""
    torch.manual_seed(RANK)
    parallel, model, optimizer = start("auto", mesh, models.GPT(depth=2, dropout=0.2))
    model.register_forward_pre_hook(lambda *_: None)
    drawn = torch.rand(3).tolist()
    return {"losses": models.train(model, optimizer, 3), "drawn": drawn, "random_rank": parallel.random_rank}


def own_plan() -> dict[str, Any]:
    """A plan of the script's own, with styles of torch and in our words; only what it names is divided."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    torch.manual_seed(0)
    model = models.GPT(depth=2)
    optimizer = models.two_groups(model)
    plan = {"blocks.0.mlp.0": ColwiseParallel(), "blocks.0.mlp.2": RowwiseParallel(), "blocks.1.*.0": "gather"}
    parallel = make("auto", {"tp": 2}, Context(), choose_device(0, "cpu"), tp_plan=lambda _: plan)
    parallel.adopt(parallel.wrap(model), optimizer)
    divided = [name for name, p in model.named_parameters() if p._local_tensor.numel() < p.numel()]
    return {"losses": models.train(model, optimizer, 4), "divided": divided}


def refused_meshes() -> dict[str, str]:
    """Return what is said, by case."""
    tuned = {"tp": {"tuning": Tuning(compile=True)}, "cp": {"tuning": Tuning(compile=True)}}
    cases: dict[str, Callable[[], object]] = {
        "by-hand": lambda: start("auto", {"cp": 2}, models.OwnAttention(by_hand=True))[1](next(models.batches(1))[0]),
        "own-places": lambda: start("auto", {"cp": 2}, models.OwnAttention(by_hand=False))[1](
            next(models.batches(1))[0]
        ),
        "no-blocks": lambda: start("auto", {"cp": 2}, nn.Linear(4, 4)),
        "no-matrix": lambda: start("auto", {"tp": 2}, nn.Linear(3, 3)),
        **{
            f"compile-{axis}": lambda axis=axis, more=more: make(  # type: ignore[misc]
                "auto", {axis: 2}, Context(), choose_device(0, "cpu"), **more
            ).wrap(models.GPT(depth=2))
            for axis, more in tuned.items()
        },
    }
    said = {}
    for name, case in cases.items():
        try:
            case()
        except ShoalError as error:
            said[name] = str(error)
    return said


def odd_lengths() -> dict[str, Any]:
    """Sequences that two processes cannot share evenly are computed by each, with the same result."""
    torch.manual_seed(0)
    _, model, optimizer = start("auto", {"cp": 2}, models.GPT(depth=2))
    losses = []
    for length in (12, 11, 12, 1):
        x, y = (part[:, :length] for part in next(models.batches(1)))
        loss = models.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


def odd_batches() -> dict[str, Any]:
    """Batches that micro-batches do not divide, down to one row; training and evaluation take turns."""
    torch.manual_seed(0)
    _, model, optimizer = start("pipeline", {"pipeline": WORLD, "num_microbatches": 3}, models.GPT(depth=2))
    losses = []
    for rows in (8, 7, 2, 1, 7):
        x, y = next(models.batches(1, rows=rows))
        model.train()
        loss = models.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            losses += [loss.item(), models.cross_entropy(model(x), y).item()]
    return {"losses": losses}


def mixed_precision() -> dict[str, Any]:
    torch.manual_seed(0)
    _, model, optimizer = start("pipeline", None, models.GPT(depth=2, dropout=0.1))
    losses = []
    for x, y in models.batches(6):
        with torch.autocast("cpu", torch.bfloat16):
            loss = models.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "same": len(set(mean_over_ranks(losses)) ^ set(losses)) == 0}


def overflow() -> dict[str, Any]:
    """A gradient overflows on the last stage only: all stages must leave that step out."""
    torch.manual_seed(0)
    _, model, optimizer = start("pipeline", None, models.GPT(depth=2))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scales, weights = [], []
    for step, (x, y) in enumerate(models.batches(3)):
        hook = None
        if step == 1 and RANK == WORLD - 1:
            hook = model.blocks[1].mlp[0].weight.register_hook(lambda gradient: gradient * float("inf"))
        scaler.scale(models.cross_entropy(model(x), y)).backward()
        if hook is not None:
            hook.remove()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        weights.append(model.tokens.weight.detach().clone())
    drifted = differs_between_ranks({"tokens": weights[-1]})
    return {"scales": scales, "moved": [not torch.equal(a, b) for a, b in pairwise(weights)], "drifted": drifted}


def frozen() -> dict[str, Any]:
    """The first stage has nothing to train."""
    torch.manual_seed(0)
    model = models.GPT()
    for name, param in model.named_parameters():
        param.requires_grad_("blocks.3" in name or "norm" in name)
    _, model, optimizer = start("pipeline", None, model)
    return {"losses": models.train(model, optimizer, 5)}


def averaged_copy() -> dict[str, Any]:
    """A deep copy of the model (an average of weights) runs on the same stages and stays as it was."""
    torch.manual_seed(0)
    _, model, optimizer = start("pipeline", None, models.GPT(depth=2))
    kept = copy.deepcopy(model)
    x, y = next(models.batches(1))
    with torch.no_grad():
        before = models.cross_entropy(kept(x), y).item()
    losses = models.train(model, optimizer, 3)
    with torch.no_grad():
        after = models.cross_entropy(kept(x), y).item()
    return {"first": losses[0], "before": before, "after": after}


def side_by_side() -> dict[str, Any]:
    """Ends in an error: on the second stage at once, on the first because the second has gone."""
    _, model, _ = start("pipeline", None, models.SideBySide())
    model(next(models.batches(1))[0])
    return {}


def different_inputs() -> dict[str, Any]:
    """Ends in an error, like the other."""
    _, model, _ = start("pipeline", None, models.GPT(depth=2))
    model(torch.zeros(4, 8 + RANK, dtype=torch.long))
    return {}


def bare_model() -> dict[str, Any]:
    """The wrapper is used for some steps, then the bare model; each said on its rank."""
    warned: list[str] = []
    parallel, wrapped, _ = start("ddp", None, models.GPT(depth=2))
    inner = parallel.unwrap(wrapped)
    misuse_checks.watch_model(wrapped, inner, lambda code, text: warned.append(code))
    x, y = next(models.batches(1))
    for _ in range(2):
        models.cross_entropy(wrapped(x), y).backward()
    with torch.no_grad():
        inner(x)
    quiet = list(warned)
    for _ in range(2):
        models.cross_entropy(inner(x), y).backward()
    return {"quiet": quiet, "warned": warned}


def same_data() -> dict[str, Any]:
    found = {}
    for name, share in {"same": 0, "different": RANK}.items():
        warned: list[str] = []
        parallel, wrapped, _ = start("ddp", None, models.GPT(depth=2))
        watch = misuse_checks.watch_batches(wrapped)
        x, y = next(models.batches(1, share, WORLD))
        models.cross_entropy(wrapped(x), y).backward()
        misuse_checks.check_batches(watch, parallel.data_rank, lambda code, text, to=warned: to.append(code))
        found[name] = warned
    return found


def rendezvous() -> dict[str, Any]:
    """A connection to the store of one's own; a group of the script's own making is left alone."""
    shared = store()
    assert shared is not None
    shared.set(f"hello-{RANK}", str(RANK))
    heard = [shared.get(f"hello-{rank}").decode() for rank in range(WORLD)]
    dist.barrier(group=object_group())
    close_group()
    closed = not dist.is_initialized()
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    dist.init_process_group("gloo")
    start("ddp", None, nn.Linear(2, 2))
    dist.barrier()
    close_group()
    return {"heard": heard, "closed": closed, "kept": dist.is_initialized()}


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "ddp": lambda: curve("ddp"),
    "fsdp": lambda: curve("fsdp"),
    "pipeline": lambda: curve("pipeline"),
    "ddp-fsdp": lambda: curve("auto", {"ddp": 2, "fsdp": 2}),
    "ddp-pipeline": lambda: curve("auto", {"ddp": 2, "pipeline": 2}),
    "tp": lambda: curve("auto", {"tp": 2}),
    "cp": lambda: curve("auto", {"cp": 2}),
    "fsdp-tp": lambda: curve("auto", {"fsdp": 2, "tp": 2}),
    "ddp-tp": lambda: curve("auto", {"ddp": 2, "tp": 2}),
    "cp-tp": lambda: curve("auto", {"cp": 2, "tp": 2}),
    "ddp-cp": lambda: curve("auto", {"ddp": 2, "cp": 2}),
    "four-stages": lambda: pipeline_of(models.GPT, num_microbatches=4),
    "gpt2-pipeline": lambda: hugging_face("gpt2", "pipeline"),
    "gpt2-fsdp": lambda: hugging_face("gpt2", "fsdp"),
    "llama-pipeline": lambda: hugging_face("llama", "pipeline"),
    "llama-fsdp": lambda: hugging_face("llama", "fsdp"),
    "gpt2-tp": lambda: hugging_face("gpt2", "auto", {"tp": 2}),
    "gpt2-cp": lambda: hugging_face("gpt2", "auto", {"cp": 2}),
    "llama-tp": lambda: hugging_face("llama", "auto", {"tp": 2}),
    "llama-cp": lambda: hugging_face("llama", "auto", {"cp": 2}),
    "conditioned": lambda: pipeline_of(models.Conditioned),
    "residual-outside": lambda: pipeline_of(models.ResidualOutside, num_microbatches=4),
    "chain": lambda: pipeline_of(models.Chain),
    "recompute": lambda: pipeline_of(lambda: models.GPT(depth=2, recompute=True)),
    "accumulation-told": lambda: accumulation("pipeline", True),
    "accumulation-untold": lambda: accumulation("pipeline", False),
    "accumulation-tp": lambda: accumulation("auto", True, {"tp": 2}),
    "accumulation-cp": lambda: accumulation("auto", True, {"cp": 2}),
    "dropout-tp": lambda: dropout({"tp": 2}),
    "own-plan": own_plan,
    "refused-meshes": refused_meshes,
    "odd-lengths": odd_lengths,
    "accumulation-fsdp": lambda: accumulation("fsdp", True),
    "accumulation-ddp": lambda: accumulation("ddp", True),
    "odd-batches": odd_batches,
    "mixed-precision": mixed_precision,
    "overflow": overflow,
    "frozen": frozen,
    "averaged-copy": averaged_copy,
    "bare-model": bare_model,
    "same-data": same_data,
    "rendezvous": rendezvous,
    "side-by-side": side_by_side,
    "different-inputs": different_inputs,
}


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    results: dict[str, Any] = {}
    for name in sys.argv[2:]:
        results[name] = SCENARIOS[name]()
        torch.save(results, f"{sys.argv[1]}.{RANK}")
    if dist.is_initialized():
        dist.barrier(group=object_group())
        close_group()
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
