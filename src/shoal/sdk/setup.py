"""What `prepare` sets up: the way of parallelism, the wrapped objects, the checkpoint that was found, the saver.

Everything here that other ranks must do too happens in `prepare`, in the same order on all of them.
"""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.sdk import group, guards
from shoal.sdk.accumulate import Accumulation
from shoal.sdk.context import Context
from shoal.sdk.device import choose_device
from shoal.sdk.ledger import Ledger
from shoal.sdk.loader import Host, keeps_state, load_stream, prepare_loader
from shoal.sdk.options import Options
from shoal.sdk.parallel import make
from shoal.sdk.parts import Parts, kind_of, owner_of
from shoal.sdk.sampler import DealtFeed, Feed
from shoal.sdk.saving import restore
from shoal.sdk.saving.peers import Peers
from shoal.sdk.saving.rng import seed_everything, set_rng_state
from shoal.sdk.saving.saver import Saver, Taken
from shoal.sdk.spool import Spool

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")
logger = logging.getLogger(__name__)


class Setup:
    def __init__(self, context: Context, options: Options, spool: Spool, host: Host):
        self._context, self._options, self._spool, self._host = context, options, spool, host
        self.device = choose_device(context.local_rank, options.device, alone=context.world_size == 1)
        more = {kind: options.extra.get(kind) for kind in ("ddp", "swarm")}
        self.parallel = make(options.parallel, options.mesh, context, self.device, **more)
        self.accumulation = Accumulation(self.parallel)
        self.parts = Parts()
        self.driver: Feed | None = None
        """The feed whose batches are the steps."""
        self.ledgers: list[tuple[Feed, Ledger]] = []
        self.seed = (options.seed or 0) + self.parallel.data_seed
        self.resumed_from: Path | None = None
        self.resumed_step = 0
        self.is_news = False
        self.generators: Mapping[str, Any] | None = None
        """State of this rank's generators to go on from; None once a step was made."""
        self.schedules_made = -1
        self._first_batch: guards.BatchWatch | None = None
        self._parameters: list[set[int]] = []
        self._saved: dict[str, Any] | None = None
        self._is_asked = False
        self._warned: set[tuple[str, str]] = set()
        self._loaded = {"models": 0, "optimizers": 0, "schedulers": 0, "scalers": 0, "feeds": 0}
        ranks = self._gather((self.parallel.data_rank, secrets.token_hex(4)))
        self.session = ranks[0][1]
        self._tells = next(i for i, r in enumerate(ranks) if r[0] == self.parallel.data_rank) == context.rank % len(
            ranks
        )
        self.saver = Saver(
            context.output_dir,
            keep=options.keep_checkpoints,
            peers=lambda: Peers(context.rank, context.world_size, self.session),
            is_main=context.is_main,
            warn=self._warn,
            committed=lambda step, path: spool.write("c", i=step, name=path.name),
        )

    def prepare(self, objects: tuple[Any, ...]) -> tuple[Any, ...]:
        kinds = [None if self.parts.has(o) else kind_of(o) for o in objects]
        prepared = list(objects)
        for number, kind in enumerate(kinds):
            if kind == "models":
                prepared[number] = self._add_model(objects[number])
        for number, kind in enumerate(kinds):
            if kind == "optimizers":
                self._add_optimizer(objects[number])
            elif kind == "schedulers":
                self.accumulation.add_scheduler(objects[number])
                self.parts.schedulers.append(objects[number])
            elif kind == "scalers":
                self.accumulation.add_scaler(objects[number])
                self.parts.scalers.append(objects[number])
            elif kind == "loaders":
                prepared[number] = self._add_loader(objects[number])
        fresh = "models" in kinds
        self._choose_driver()
        self.resume()
        if fresh and self.resumed_from is None and self._options.seed is not None and self._context.world_size > 1:
            seed_everything(self.seed, "rank", self._context.rank)
        self.parallel.begin(self.parts.schedulers, self._samples)
        return tuple(prepared)

    def register(self, objects: tuple[Any, ...]) -> None:
        for value in objects:
            if self.parts.has(value):
                continue
            kind = kind_of(value)
            if kind == "models":
                self._watch(value, _inner(value))
                value = _inner(value)
                self._parameters.append({id(p) for p in value.parameters()})
            elif kind == "optimizers":
                self.parts.owners.append(owner_of(value, self._parameters))
                value.register_step_pre_hook(lambda *_: self.accumulation.on_step())
            if kind != "loaders":
                getattr(self.parts, kind).append(value)

    def resume(self) -> None:
        """Collective. Find a checkpoint, once there is a model; then load what has not been loaded yet."""
        if not self.parts.models:
            return
        if not self._is_asked:
            self._is_asked = True
            self._find()
        if self._saved is not None:
            self._load(self._saved)
        for feed in self.parts.feeds[self._loaded["feeds"] :]:
            self._describe(feed)
        self._loaded["feeds"] = len(self.parts.feeds)

    def save(self, step: int, about: Mapping[str, Any], *, may_skip: bool, overlap: bool, wait: bool) -> None:
        """All ranks, at the same step."""
        live = self.parts.files(self.parallel)
        if self._context.is_main and self.saver.is_busy:
            if may_skip and live is not None:
                self.saver.skip(step)
                return
            self.saver.wait_idle()
        self.saver.is_torn = False
        files, late = live if live is not None else (self.parts.whole_files(self.parallel), set())
        taken = Taken(files, late, self._small(step), dict(about))
        job = self.saver.take(step, taken, overlap=overlap)
        if wait:
            self.saver.wait(job, step)

    def restore_generators(self) -> None:
        if self.generators is not None:
            set_rng_state(self.generators)

    def check_data(self) -> None:
        """Collective, once, after the first step: whether a loader we know nothing of gives every rank the same."""
        watch, self._first_batch = self._first_batch, None
        if watch is not None and not self.parts.feeds:
            # With a wrapper of the script's own making, every rank is to read a share of its own.
            share = self._context.rank if self.parallel.name == "none" else self.parallel.data_rank
            guards.check_batches(watch, share, self._warn)

    def _watch(self, wrapped: Any, inner: Any) -> None:
        guards.watch_model(wrapped, inner, self._warn)
        if self._first_batch is None and not self.parts.models and self._context.world_size > 1:
            self._first_batch = guards.watch_batches(wrapped)

    def _add_model(self, model: Any) -> Any:
        # Before wrapping, which may give the model other parameters than those the optimizer was made with.
        self._parameters.append({id(p) for p in model.parameters()})
        wrapped = self.parallel.wrap(model)
        self._watch(wrapped, self.parallel.unwrap(wrapped))
        self.accumulation.add_model(wrapped)
        self.parts.models.append(wrapped)
        return wrapped

    def _add_optimizer(self, optimizer: Any) -> None:
        owner = owner_of(optimizer, self._parameters)
        if self.parts.models:
            self.parallel.adopt(self.parts.models[owner], optimizer)
        self.accumulation.add_optimizer(optimizer)
        self.parts.optimizers.append(optimizer)
        self.parts.owners.append(owner)

    def _add_loader(self, loader: Any) -> Any:
        kind = type(getattr(loader, "dataset", loader)).__name__
        taken = sum(feed.name.split("#")[0] == kind for feed in self.parts.feeds)
        name = kind if not taken else f"{kind}#{taken + 1}"
        prepared, feed, warning = prepare_loader(
            loader,
            self._host,
            name=name,
            seed=self.seed,
            rank=self.parallel.data_rank,
            world=self.parallel.data_world,
            accumulate=self._options.accumulate,
        )
        if warning is not None:
            self._warn("order_not_ours", f"{name}: {warning}")
        self.parts.loaders.append(prepared)
        self.parts.feeds.append(feed)
        return prepared

    def _choose_driver(self) -> None:
        """The loader to train on: the first that shuffles, or else the first."""
        if self.driver is None and self.parts.feeds:
            self.driver = next((f for f in self.parts.feeds if f.shuffle), self.parts.feeds[0])

    def _find(self) -> None:
        """Rank 0 decides for all; ranks that do not see its directory get the contents from it."""
        found: Any = None
        if self._context.is_main:
            try:
                found = restore.find(self._context, self._options)
            except ShoalError as error:
                found = error
        found = self._from_main(found)
        if isinstance(found, ShoalError):
            raise found
        for note in found.notes:
            self._warn("resume", note)
        if found.path is None:
            return
        self.resumed_from, self.resumed_step = found.path, int(found.about["step"])
        if all(self._gather((found.path / "shoal.json").exists())):
            self._saved = restore.read(found.path)
        else:
            self._saved = self._from_main(restore.read(found.path) if self._context.is_main else None)
        self.is_news = True

    def _load(self, saved: Mapping[str, Any]) -> None:
        parts, loaded, training = self.parts, self._loaded, saved["training.pt"]
        if len(parts.models) > loaded["models"] or len(parts.optimizers) > loaded["optimizers"]:
            parts.load_big(self.parallel, saved)
        parts.load_small(training, loaded)
        for number in range(loaded["feeds"], min(len(parts.feeds), len(training["loaders"]))):
            self._load_feed(number, training["loaders"][number])
        loaded.update({kind: len(getattr(parts, kind)) for kind in ("models", "optimizers", "schedulers", "scalers")})
        self.schedules_made = int(training["schedules"])
        self.accumulation.replayed_schedules = -1
        states = training["rng"]
        if len(states) == self._context.world_size:
            self.generators = states[self._context.rank]
            self.restore_generators()
        else:
            self._warn(
                "generators", f"saved by {len(states)} workers: with {self._context.world_size}, dropout draws anew"
            )
            seed_everything(self.seed, "rank", self._context.rank, self.resumed_step)

    def _load_feed(self, number: int, state: Mapping[str, Any]) -> None:
        feed, loader = self.parts.feeds[number], self.parts.loaders[number]
        if isinstance(feed, DealtFeed) and feed.dealing.size != state.get("size", feed.dealing.size):
            size = feed.dealing.size
            self._warn("data_changed", f"{feed.name} has {size} samples; the checkpoint was made with {state['size']}")
        if isinstance(feed, DealtFeed) != ("global_batch" in state):
            self._warn("data_changed", f"{feed.name} is another kind of loader than in the checkpoint: it starts anew")
            return
        feed.load(state, skip=feed is self.driver)
        if "stream" in state and keeps_state(loader):
            load_stream(loader, state["stream"])

    def _describe(self, feed: Feed) -> None:
        """The record that the ledger's lines refer to, as the feed stands after a resume."""
        if not isinstance(feed, DealtFeed):
            return
        dealing = feed.dealing
        if self._tells:
            ledger = Ledger(
                self._spool.write, name=feed.name, session=self.session, rank=feed.rank, world=dealing.world
            )
            self.ledgers.append((feed, ledger))
        if self._context.is_main:
            self._spool.write(
                "d",
                name=feed.name,
                size=dealing.size,
                seed=feed.seed,
                batch=dealing.global_batch,
                drop_last=dealing.drop_last,
                shuffle=feed.shuffle,
                x=self.session,
                **{"from": self.resumed_step},
            )

    def _small(self, step: int) -> dict[str, Any]:
        driver, made = self.driver, self.accumulation.schedules
        return {
            "step": step,
            "seed": self.seed,
            "world_size": self._context.world_size,
            # Of the calls of scheduler.step between two passes, how many had been made; all (-1) within a pass.
            "schedules": -1 if driver is None or driver.is_open else made,
            **self.parts.small(lambda what: self._warn("not_saved", f"{what} is not saved: it is no plain value")),
        }

    def about(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
        driver = self.driver
        epoch, batch = driver.position if driver is not None else (None, 0)
        per_epoch = driver.batches if driver is not None else None
        return {
            "step": step,
            "epoch": epoch + batch / per_epoch if epoch is not None and per_epoch else epoch,
            "metrics": {k: v for k, v in metrics.items() if isinstance(v, (int, float)) and v - v == 0},
            "world_size": self._context.world_size,
            "global_batch": driver.dealing.global_batch if isinstance(driver, DealtFeed) else None,
            "seed": self.seed,
            "parallel": self.parallel.name,
            "torch": str(torch.__version__),
        }

    def _samples(self) -> int | None:
        """Behind the gradients of this step, if one batch of the prepared loader is all of it."""
        now = self.driver.now if self.driver is not None and self._options.accumulate == 1 else None
        return now.used if now is not None else None

    def _warn(self, code: str, text: str) -> None:
        if (code, text) in self._warned:
            return
        self._warned.add((code, text))
        self._spool.write("w", code=code, text=text)
        if self._context.is_main:
            warnings.warn(f"shoal: {text}", stacklevel=2)

    def _gather(self, value: Any) -> list[Any]:
        objects = group.object_group()
        if objects is None:
            return [value]
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value, group=objects)
        return found

    def _from_main(self, value: Any) -> Any:
        objects = group.object_group()
        if objects is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=objects)
        return box[0]


def _inner(model: Any) -> Any:
    """The user's module inside a DistributedDataParallel of the user's own making."""
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
