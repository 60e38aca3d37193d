"""Preparation of every worker before a training starts."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.model import ModelBase, load_weights
from shoal.compat.topspin.param import PARAM_FILE, ParamBase
from shoal.train.optim import find_optimizer

torch: Any = import_module("torch")


def make_optimizer(param: ParamBase, model: Any) -> Any:
    """Return an optimizer with all parameters in one group, as in TopSpin."""
    kind = find_optimizer(param.optimizer_name)
    return kind(model.parameters(), lr=param.lr, weight_decay=param.weight_decay)


def load_initial(file: str, model: Any, optimizer: Any, device: Any) -> None:
    """Load initial weights, and the optimizer's state if the file has a matching one. Nothing else is restored."""
    Logger.info(f"Loading initial model '{file}'")
    info = model.load_model(file) if isinstance(model, ModelBase) else load_weights(model, file, device)
    state = (info or {}).get("optimizer_state")
    if state is None:
        return
    for mine, theirs in zip(optimizer.param_groups, state["param_groups"], strict=False):
        theirs["lr"] = theirs["initial_lr"] = mine["lr"]
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        Logger.warn(f"the optimizer's state in {file} does not match, so the optimizer starts fresh: {error}")


def set_machine(param: ParamBase) -> None:
    """Set cuDNN options and the number of threads, at most the cores per worker of this machine."""
    cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    torch.set_num_threads(max(1, min(int(param.num_threads_cpu), cores)))
    torch.backends.cudnn.deterministic = param.cudnn_deterministic
    torch.backends.cudnn.benchmark = param.cudnn_benchmark


def agree(param: ParamBase) -> None:
    """Use the first worker's work folder and seed on all workers, unless a starter has provided the parameters."""
    if torch.distributed.get_world_size() == 1 or os.environ.get(PARAM_FILE):
        return
    box = [param.path_work, param.run_seed]
    torch.distributed.broadcast_object_list(box, src=0)
    param.path_work, param.run_seed = box
