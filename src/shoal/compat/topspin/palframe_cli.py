"""The command `palframe`: init, start_dist_train, stop_dist_train."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.compat.topspin import stopper
from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.starter import start_distributed_train
from shoal.core.errors import NameTaken, ShoalError, UsageError

_SETTINGS: dict[str, tuple[Any, str]] = {
    "servers_file": (str, "file with one server per line"),
    "train_files": (str, "training files"),
    "vali_files": (str, "validation file"),
    "test_files": (str, "test files"),
    "path_initial_model": (str, "model to start from"),
    "gpus": (ast.literal_eval, "such as [0,1,2]"),
    "gpu_num": (int, "workers per server"),
    "epoch_num": (float, "epochs to train"),
    "max_train_step": (int, "steps to train"),
    "model_saved_num": (int, "number of models to keep"),
    "iter_num_update_optimizer": (int, "batches per step"),
    "batch_size": (int, "samples per batch and worker"),
}
_NAMES = {"vali_files": "vali_file"}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    Logger.set_level(args.debug_level)
    try:
        code: int = args.run(args)
    except ShoalError as error:
        print(f"error: {error.message}{f' ({error.hint})' if error.hint else ''}", file=sys.stderr)
        return error.exit_code
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="palframe", description="Create projects, start and stop trainings.")
    commands = parser.add_subparsers(required=True)
    init = commands.add_parser("init", help="create a new project")
    init.add_argument("name", nargs="?", help="name of the project folder (default: prompt for it)")
    init.add_argument("--debug_level", type=int, default=1)
    init.set_defaults(run=_init)
    start = commands.add_parser("start_dist_train", help="start a distributed training")
    start.add_argument("--project_dir", required=True, help="folder of the project's files")
    start.add_argument("--train_script_name", default="train.py")
    start.add_argument("--param_script_name", default="param.py")
    start.add_argument("--param_cls_name", default="Param")
    start.add_argument(
        "--trainer_cls_name", default="Trainer", help="accepted and ignored: the script chooses its trainer"
    )
    start.add_argument("--extra_run_tag", help="added to the name of the run")
    start.add_argument("--debug_level", type=int, default=1)
    for name, (kind, words) in _SETTINGS.items():
        start.add_argument(f"--{name}", type=kind, help=words)
    start.set_defaults(run=_start)
    stop = commands.add_parser("stop_dist_train", help="stop a distributed training")
    stopper.add_options(stop)
    stop.set_defaults(run=lambda args: stopper.run(args, []))
    return parser


def _start(args: argparse.Namespace) -> int:
    folder = Path(args.project_dir)
    script, source = folder / args.train_script_name, folder / args.param_script_name
    for path in (script, source):
        if not path.is_file():
            raise UsageError(
                f"E1: there is no {path} in {Path.cwd()}", hint="give --project_dir from your working directory"
            )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    # Imported as a module of that path, so that the workers find the class when they unpickle the parameters.
    module = importlib.import_module(".".join(source.resolve().relative_to(Path.cwd()).with_suffix("").parts))
    param = getattr(module, args.param_cls_name).get_instance()
    for name in _SETTINGS:
        if (value := getattr(args, name)) is not None:
            setattr(param, _NAMES.get(name, name), value)
    if args.gpus and args.gpu_num is None:
        param.gpu_num = len(args.gpus)
    if args.extra_run_tag:
        param.path_work = f"{param.path_work}.{args.extra_run_tag}"
    start_distributed_train(param, str(script))
    return 0


def _init(args: argparse.Namespace) -> int:
    name = args.name or input("project name: ").strip()
    if not name.isidentifier():
        raise UsageError(
            f"{name!r} is not a valid project name", hint="use letters, digits and _, as for Python modules"
        )
    folder = Path(name)
    if folder.exists():
        raise NameTaken(f"{name} exists already")
    folder.mkdir(parents=True)
    for file, text in _project(name).items():
        (folder / file).write_text(text)
        print(folder / file)
    print(f"Next: PYTHONPATH=./ python {name}/train.py")
    return 0


def _project(name: str) -> dict[str, str]:
    return {
        "__init__.py": "",
        "param.py": f'''from topspin import ParamBase


class Param(ParamBase):
    def __init__(self):
        super().__init__("{name}")
        self.lr = 0.01
        self.batch_size_one_gpu = 16
        self.epoch_num = 2
        self.train_sample_num = 256
        self.eval_gap_sample_num = 256
''',
        "model.py": """import torch
from topspin import ModelBase


class Model(ModelBase):
    def __init__(self, param):
        super().__init__(param)
        self._linear = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self._linear(x)
""",
        "train.py": f"""import torch
from {name}.model import Model
from {name}.param import Param
from topspin import TrainerBase


class Trainer(TrainerBase):
    def __init__(self, param):
        super().__init__(Model(param), None, None)

    def get_training_data(self, rank, world_size):
        param = self._param
        generator = torch.Generator().manual_seed(rank)
        for epoch in range(1024):
            for _ in range(param.train_sample_num // world_size // param.batch_size_one_gpu):
                x = torch.randn(param.batch_size_one_gpu, 4, generator=generator)
                yield epoch, (x, x.sum(1, keepdim=True))

    def train_one_batch(self, x, y):
        return {{"loss": torch.nn.functional.mse_loss(self._model(x), y)}}


if __name__ == "__main__":
    Trainer(Param.get_instance()).train()
""",
    }


if __name__ == "__main__":
    raise SystemExit(main())
