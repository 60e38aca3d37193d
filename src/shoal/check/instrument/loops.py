"""Insertion of the SDK's lines into a hand-written training loop: plain PyTorch, DDP, Accelerate, Fabric."""

from __future__ import annotations

import ast

from shoal.check.calls import keyword_of
from shoal.check.frameworks import ACCELERATE, FABRIC
from shoal.check.instrument.accumulation import whole_loss
from shoal.check.instrument.patch import Patch
from shoal.check.instrument.places import Places, callers, places_of
from shoal.check.module import Module
from shoal.check.scopes import Binding
from shoal.check.training import Loop, loops_in, wraps_models
from shoal.core.errors import Refused

_BY_HAND = "Add the lines yourself: run = shoal.init(), run.prepare(…), run.step(loss=loss), run.finish()."


def instrument_loop(module: Module, patch: Patch, framework: str) -> list[str]:
    """Insert the lines; return notes on features that the script will not have."""
    loop = _the_loop(module)
    _refuse_own_workers(module, loop)
    places, run = places_of(loop), _free_name(module)
    own = framework in (ACCELERATE, FABRIC) or _is_distributed(module)
    trained = [] if own else _trained(loop, places)
    if trained and places.prepare is not None:
        handed = ", ".join(trained)
        prepare = f"{handed} = {run}.prepare({handed})"
        if places.begin is places.prepare:
            patch.before(places.begin, f"{run} = shoal.init()", prepare)
        else:
            patch.before(places.begin, f"{run} = shoal.init()")
            patch.before(places.prepare, prepare)
    else:
        patch.before(places.begin, f'{run} = shoal.init(parallel="none")')
    _report_steps(module, patch, loop, run)
    if isinstance(places.end, (ast.Return, ast.Raise)):
        patch.before(places.end, f"{run}.finish()")
    else:
        patch.after(places.end, f"{run}.finish()")
    if trained or own:
        return []
    return [
        "The names of model, optimizer and loader could not all be found. The script gets metrics, progress and a clean stop, "
        "but no checkpoints, and it can use one worker only. Add `run.prepare(model, optimizer, loader)` for both."
    ]


def _the_loop(module: Module) -> Loop:
    loops = loops_in(module)
    if not loops:
        raise Refused(f"There is no training loop in {module.path}: backward() is never called.", hint=_BY_HAND)
    ready = [loop for loop in loops if loop.step is not None]
    if not ready:
        line = loops[0].backward.lineno
        raise Refused(f"backward() is called in line {line}, but no optimizer step follows.", hint=_BY_HAND)
    if len(ready) > 1:
        lines = ", ".join(str(loop.backward.lineno) for loop in ready)
        raise Refused(
            f"There are {len(ready)} training loops (lines {lines}), but a run can have only one.", hint=_BY_HAND
        )
    if not isinstance(ready[0].loss, ast.Name):
        line = ready[0].backward.lineno
        raise Refused(
            f"The loss in line {line} is not a variable.", hint="Write `loss = …` and `loss.backward()`, and try again."
        )
    return ready[0]


def _refuse_own_workers(module: Module, loop: Loop) -> None:
    """Refuse a script whose training runs in processes that it starts itself: the run would not exist there."""
    function = module.function_of(loop.backward)
    training = callers(module, function) if function is not None else set()
    for call in module.all(ast.Call):
        called = module.called(call)
        name = next((o.rpartition(".")[2] for o in called if "multiprocessing" in o), "")
        spawns = name in ("spawn", "start_processes")
        target = keyword_of(call, "fn" if spawns else "target") or (call.args[0] if spawns and call.args else None)
        if (spawns or name == "Process") and target is not None and ast.unparse(target).rpartition(".")[2] in training:
            raise Refused(
                f"The script starts its own workers ({ast.unparse(call.func)} in line {call.lineno}).",
                hint="Call the training function directly, with rank and world size from RANK and WORLD_SIZE; "
                "`shoal run --nproc N` starts the workers, and `shoal training run --accels N` those of a job.",
            )


def _report_steps(module: Module, patch: Patch, loop: Loop, run: str) -> None:
    assert loop.step is not None and isinstance(loop.loss, ast.Name)  # noqa: S101
    told = f"{run}.step(loss={whole_loss(loop)})"
    statement = module.statement_of(loop.step)
    for above in module.scopes.above(statement):
        for item in above.items if isinstance(above, ast.With) else []:
            if isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func).endswith(".accumulate"):
                owner = ast.unparse(item.context_expr.func).rpartition(".")[0]
                if not patch.is_alone(statement):
                    patch.after(statement, f"{owner}.sync_gradients and {told}")
                    return
                unit = "\t" if patch.indentation(statement).startswith("\t") else "    "
                patch.after(statement, f"if {owner}.sync_gradients:", f"{unit}{told}")
                return
    patch.after(statement, told)


def _trained(loop: Loop, places: Places) -> list[str]:
    """Return the names of model, optimizer, loader and schedulers at the place of run.prepare; empty if not all are known."""
    module = loop.module
    if not isinstance(loop.optimizer, ast.Name) or not isinstance(loop.loader, ast.Name) or places.prepare is None:
        return []
    there = module.scopes.of(places.prepare)
    optimizer, loader = (places.names.get(n.id, n.id) for n in (loop.optimizer, loop.loader))
    made = there.find(optimizer)
    values = [binding.value for binding in made if isinstance(binding.value, ast.Call)]
    models = {
        node.value.id
        for value in values
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute)
        and node.attr in ("parameters", "named_parameters")
        and isinstance(node.value, ast.Name)
    }
    if len(models) != 1 or len(values) != len(made):
        return []
    found = [*models, optimizer, loader, *_schedulers(module, there.names, places.prepare)]
    bound = [binding for name in found for binding in there.find(name)]
    early = all(getattr(b.node, "lineno", 0) < places.prepare.lineno for b in bound)
    return found if early and all(there.find(name) for name in found) else []


def _schedulers(module: Module, names: dict[str, list[Binding]], before: ast.stmt) -> list[str]:
    found = []
    for name, bindings in names.items():
        value = bindings[0].value if len(bindings) == 1 else None
        if value is None or "." in name or value.lineno >= before.lineno:
            continue
        origins = module.origins(value)
        if origins and all(o.startswith("torch.optim.lr_scheduler.") for o in origins):
            found.append(name)
    return found


def _is_distributed(module: Module) -> bool:
    return any(wraps_models(o) for call in module.all(ast.Call) for o in module.called(call))


def _free_name(module: Module) -> str:
    used = {node.id for node in module.all(ast.Name)} | {node.arg for node in module.all(ast.arg)}
    used |= {node.name for node in module.all(ast.FunctionDef)}
    return next(name for name in ("run", "shoal_run", "the_shoal_run") if name not in used)
