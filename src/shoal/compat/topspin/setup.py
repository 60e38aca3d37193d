"""What has to be right on every worker before a training begins."""

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
    """All parameters in one group, as TopSpin has them."""
    kind = find_optimizer(param.optimizer_name)
    return kind(model.parameters(), lr=param.lr, weight_decay=param.weight_decay)


def load_initial(file: str, model: Any, optimizer: Any, device: Any) -> None:
    """Weights to begin with, and the optimizer's state if the file has one that fits; nothing else of what was before."""
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
        Logger.warn(f"the optimizer's state in {file} does not fit, and begins anew: {error}")


def set_machine(param: ParamBase) -> None:
    """Threads, no more than there are cores for the workers of this machine; and cuDNN."""
    cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    torch.set_num_threads(max(1, min(int(param.num_threads_cpu), cores)))
    torch.backends.cudnn.deterministic = param.cudnn_deterministic
    torch.backends.cudnn.benchmark = param.cudnn_benchmark


def agree(param: ParamBase) -> None:
    """Workers that no starter has given their parameters take the work folder and the seed of the first."""
    if torch.distributed.get_world_size() == 1 or os.environ.get(PARAM_FILE):
        return
    box = [param.path_work, param.run_seed]
    torch.distributed.broadcast_object_list(box, src=0)
    param.path_work, param.run_seed = box
