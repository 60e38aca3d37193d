"""Rules about several workers that run one script: duplicated data, and models that are never synchronized."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shoal.check.calls import has_unpacking, keyword_of
from shoal.check.frameworks import PLAIN, frameworks_of
from shoal.check.job_facts import JobFacts
from shoal.check.module import UNKNOWN, Module, is_from
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.check.training import Loop, loops_of, wraps_models
from shoal.core.checks import Severity

_SEEDS = frozenset(
    {"manual_seed", "set_seed", "seed_everything", "fix_seed", "seed_all", "set_random_seed", "manual_seed_all"}
)
_RANK_WORDS = ("WORLD_SIZE", "LOCAL_RANK", '"RANK"', "'RANK'", "torch.distributed", "init_process_group", "world_size")
_MAP_STYLE = ("TensorDataset", "Subset", "ConcatDataset", "random_split", "ImageFolder")


@rule(
    "bare-model",
    Severity.WARNING,
    why="Only the wrapped model averages gradients over the workers. With the bare model, the workers' weights diverge.",
    fix="Call the wrapped model in the loop.",
)
def bare_model(program: Program, asked: JobFacts) -> Iterator[Hit]:
    for loop in loops_of(program):
        wrapped = _wrapped_names(loop.module)
        bare = next(_bare_calls(loop, wrapped), None)
        if bare is None:
            continue
        better = wrapped[bare.id]
        yield Hit(
            loop.module,
            bare,
            f"The bare model '{bare.id}' is trained, not the wrapped '{better}'.",
            severity=Severity.ERROR if asked.workers > 1 else None,
            fix=f"Call `{better}(…)` in the loop.",
        )


@rule(
    "no-sampler",
    Severity.WARNING,
    why="Every worker uses all of the data, so each epoch does the same work several times.",
    fix="Use `sampler=DistributedSampler(dataset)`, or pass the loader to `run.prepare`.",
)
def no_sampler(program: Program, asked: JobFacts) -> Iterator[Hit]:
    if asked.workers < 2 or not _is_distributed(program):
        return
    handed_over = _handed_over(program)
    for loop in loops_of(program):
        made = _loader_call(loop)
        if made is None or has_unpacking(made) or len(made.args) > 3:
            continue
        names = {n.id for n in ast.walk(loop.loader) if isinstance(n, ast.Name)} if loop.loader is not None else set()
        own = {"sampler", "batch_sampler"} & {k.arg for k in made.keywords}
        if not own and not names & handed_over and _is_map_style(loop.module, made):
            yield Hit(loop.module, made, f"This loader gives all {asked.workers} workers the same data.")


@rule(
    "sampler-epoch",
    Severity.HINT,
    why="Without it, every epoch uses the data in the same order.",
    fix="Call `sampler.set_epoch(epoch)` at the start of each epoch.",
)
def sampler_epoch(program: Program, asked: JobFacts) -> Iterator[Hit]:
    if (
        not program.is_whole
        or program.mentions("set_epoch")
        or any(loop.outer is loop.inner for loop in loops_of(program))
    ):
        return
    for module, call in program.calls("torch", "DistributedSampler"):
        shuffle = keyword_of(call, "shuffle")
        unshuffled = isinstance(shuffle, ast.Constant) and shuffle.value is False
        trained = any(loop.module is module and loop.outer is not None for loop in loops_of(program))
        if trained and not unshuffled and not has_unpacking(call) and not _prepares(program):
            yield Hit(module, call, "set_epoch is never called.")


@rule(
    "unseeded-split",
    Severity.WARNING,
    why="Each worker draws its own split, so samples that one worker evaluates on, another one trains on.",
    fix="Add `generator=torch.Generator().manual_seed(0)`.",
)
def unseeded_split(program: Program, asked: JobFacts) -> Iterator[Hit]:
    if asked.workers < 2 or not program.is_whole or _seeds(program):
        return
    for module, call in program.calls("torch", "random_split"):
        if keyword_of(call, "generator") is None and len(call.args) < 3 and not has_unpacking(call):
            yield Hit(module, call, f"Each of the {asked.workers} workers gets a different random split of the data.")
    for module, call in program.calls("sklearn", "train_test_split"):
        keep = keyword_of(call, "shuffle")
        in_order = isinstance(keep, ast.Constant) and keep.value is False
        if keyword_of(call, "random_state") is None and not in_order and not has_unpacking(call):
            message = f"Each of the {asked.workers} workers gets a different random split of the data."
            yield Hit(module, call, message, fix="Add `random_state=0`.")


@rule(
    "not-distributed",
    Severity.WARNING,
    why="The script does not connect the workers: each trains the whole model on all of the data.",
    fix="Add `run = shoal.init()` and `run.prepare(…)` (`shoal instrument` adds these lines), or use one worker.",
)
def not_distributed(program: Program, asked: JobFacts) -> Iterator[Hit]:
    alone = frameworks_of(program) == [PLAIN] and program.is_whole and not program.mentions(*_RANK_WORDS)
    if asked.workers < 2 or asked.launched or not alone or program.imports("torch.distributed", "horovod", "deepspeed"):
        return
    loop = loops_of(program)[0]
    yield Hit(loop.module, loop.backward, f"{asked.workers} workers would train {asked.workers} separate models.")


def _bare_calls(loop: Loop, wrapped: dict[str, str]) -> Iterator[ast.Name]:
    """Yield the models that the loop calls by the name of the bare model, and never by that of the wrapped one."""
    if loop.inner is None:
        return
    used = {node.id for node in ast.walk(loop.inner) if isinstance(node, ast.Name)}
    for call in loop.module.within(loop.inner, ast.Call):
        if not isinstance(call.func, ast.Name) or call.func.id not in wrapped:
            continue
        sure = UNKNOWN not in loop.module.origins(call.func)
        if sure and wrapped[call.func.id] not in used and _feeds(loop, call):
            yield call.func


def _wrapped_names(module: Module) -> dict[str, str]:
    """Return a mapping of the bare model's name → the name of its wrapped model."""
    found: dict[str, str] = {}
    for node in module.all(ast.Assign):
        if len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(value, ast.Call) and _prepares_here(module, value):
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            pairs = list(zip(targets, value.args, strict=False))
        elif isinstance(value, ast.Call):
            inner = _within_wrapper(module, value)
            pairs = [(target, inner)] if inner is not None else []
        for new, old in pairs:
            if isinstance(new, ast.Name) and isinstance(old, ast.Name) and new.id != old.id:
                found[old.id] = new.id
    # A name that is later assigned a wrapped model is not bare.
    return {old: new for old, new in found.items() if not _rebound(module, old)}


def _rebound(module: Module, name: str) -> bool:
    nodes = [n for n in module.all(ast.Name) if n.id == name and isinstance(n.ctx, ast.Load)]
    origins = frozenset[str]().union(*map(module.origins, nodes))
    return any(wraps_models(o.removesuffix("()")) or "prepare()" in o for o in origins)


def _within_wrapper(module: Module, call: ast.Call) -> ast.expr | None:
    """Return the model in `DDP(model)`, also inside `NetmindDistributedModel(…)`, or None."""
    called = module.called(call)
    if any(is_from(o, p, "NetmindDistributedModel") for o in called for p in ("NetmindMixins", "shoal")):
        inner = call.args[0] if call.args else None
        return _within_wrapper(module, inner) if isinstance(inner, ast.Call) else None
    if called and all(wraps_models(o) for o in called) and call.args:
        return call.args[0]
    return None


def _prepares_here(module: Module, call: ast.Call) -> bool:
    return bool(module.called(call)) and all(
        o in ("shoal.init().prepare", "accelerate.Accelerator().prepare") for o in module.called(call)
    )


def _feeds(loop: Loop, call: ast.Call) -> bool:
    """Check whether a call in the loop trains: it is not below `no_grad` or `inference_mode`."""
    for above in loop.module.scopes.above(call):
        if above is loop.inner:
            return True
        if isinstance(above, ast.With) and any(
            "no_grad" in ast.unparse(i) or "inference" in ast.unparse(i) for i in above.items
        ):
            return False
    return True


def _loader_call(loop: Loop) -> ast.Call | None:
    """Return the DataLoader(…) call of a loop's data, or None if it is not certain."""
    if loop.loader is None or loop.module.origins(loop.loader) != {"torch.utils.data.DataLoader()"}:
        return None
    values = loop.module.values(loop.loader)
    while values and len(values) == 1 and not isinstance(values[0], ast.Call):
        before, values = values, loop.module.values(values[0])
        if values == before:
            return None
    return values[0] if values and len(values) == 1 and isinstance(values[0], ast.Call) else None


def _is_map_style(module: Module, made: ast.Call) -> bool:
    """Check whether a loader shuffles, or its dataset certainly has a length and an order."""
    shuffle = keyword_of(made, "shuffle") or (made.args[2] if len(made.args) > 2 else None)
    if shuffle is not None:
        return isinstance(shuffle, ast.Constant) and shuffle.value is True
    data = keyword_of(made, "dataset") or (made.args[0] if made.args else None)
    origins = module.origins(data) if data is not None else frozenset[str]()
    return bool(origins) and all(
        o.partition("()")[0].rpartition(".")[2] in _MAP_STYLE and o != UNKNOWN for o in origins
    )


def _handed_over(program: Program) -> set[str]:
    """Return the names passed to calls that distribute the data themselves, such as run.prepare."""
    names: set[str] = set()
    for _, call, _ in program.methods("prepare", "prepare_data_loader", "setup_dataloaders", "fit", "initialize"):
        names |= {
            n.id
            for a in [*call.args, *(k.value for k in call.keywords)]
            for n in ast.walk(a)
            if isinstance(n, ast.Name)
        }
    return names


def _prepares(program: Program) -> bool:
    return next(program.methods("prepare", "setup_dataloaders"), None) is not None


def _is_distributed(program: Program) -> bool:
    if program.has_call("shoal", "init") and _prepares(program):
        return True
    return program.has_call("torch", "init_process_group", "DistributedDataParallel", "FullyShardedDataParallel")


def _seeds(program: Program) -> bool:
    """Check whether the program sets a random seed in any of the known ways."""
    if program.mentions(*_SEEDS) or program.mentions("random.seed("):
        return True
    return any(keyword_of(call, "seed") is not None for _, call in program.calls("shoal", "init"))
