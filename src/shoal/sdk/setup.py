"""Objects that `prepare` sets up: the parallelism, the wrapped models and loaders, the checkpoint to resume from, the saver.

All collective operations happen inside `prepare`, in the same order on all ranks.
"""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.core import records
from shoal.core.errors import ShoalError
from shoal.sdk import misuse_checks
from shoal.sdk.accumulate import Accumulation
from shoal.sdk.context import Context
from shoal.sdk.determinism import is_deterministic
from shoal.sdk.device import choose_device
from shoal.sdk.options import Options
from shoal.sdk.parallel import make
from shoal.sdk.parallel.names import compiled_from
from shoal.sdk.parallel.tuning import read_tuning
from shoal.sdk.ranks.objects import Objects
from shoal.sdk.samples.loader import Host, keeps_state, load_stream, prepare_loader
from shoal.sdk.samples.sample_log import SampleLog
from shoal.sdk.samples.sampler import DealtFeed, Feed
from shoal.sdk.saving import layout, restore
from shoal.sdk.saving.parts import find_places
from shoal.sdk.saving.peers import Peers
from shoal.sdk.saving.rng import seed_everything, set_rng_state
from shoal.sdk.saving.saver import LiveState, Saver
from shoal.sdk.saving.shards import Shards
from shoal.sdk.spool import Spool
from shoal.sdk.training_state import TrainingState, kind_of, owner_of

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")
logger = logging.getLogger(__name__)


class Setup:
    """Prepared objects of a training, their parallelism and their saver. Made at the first `prepare` or `register`."""

    def __init__(self, context: Context, options: Options, spool: Spool, host: Host):
        self._context, self._options, self._spool, self._host = context, options, spool, host
        self.device = choose_device(context.local_rank, options.device, alone=context.world_size == 1)
        more = {kind: options.extra.get(kind) for kind in ("ddp", "swarm")}
        asked = {name: getattr(options, name) for name in ("precision", "activation_checkpointing", "compile")}
        self.parallel = make(
            options.parallel,
            options.mesh,
            context,
            self.device,
            tuning=read_tuning(asked),
            tp_plan=options.tp_plan,
            **more,
        )
        self._objects = Objects(context.rank)
        self.accumulation = Accumulation(self.parallel)
        self.parts = TrainingState()
        self.driver: Feed | None = None
        """Feed of the training loader: its batches make the steps."""
        self.ledgers: list[tuple[Feed, SampleLog]] = []
        self.seed = (options.seed or 0) + self.parallel.data_seed
        self.resumed_from: Path | None = None
        self.resumed_step = 0
        self.is_news = False
        self.generators: Mapping[str, Any] | None = None
        """State of this rank's random generators to resume from; None once a step was made."""
        self.schedules_made = -1
        self._first_batch: misuse_checks.BatchWatch | None = None
        self._parameters: list[set[int]] = []
        self._saved: dict[str, Any] | None = None
        """Contents of training.pt of the checkpoint to resume from, without what was loaded from it."""
        self._each_reads = True
        """False if only rank 0 sees the checkpoint and sends it to the others."""
        self._reads_parts = False
        """True if each rank reads only its part of the checkpoint."""
        self._is_asked = False
        self._warned: set[tuple[str, str]] = set()
        self._loaded = {"models": 0, "optimizers": 0, "schedulers": 0, "scalers": 0, "feeds": 0}
        ranks = self._objects.gather((self.parallel.data_rank, secrets.token_hex(4)))
        self.session = ranks[0][1]
        # Of the ranks that read the same share of the data, the first writes the sample log.
        self._logs_samples = next(
            i for i, r in enumerate(ranks) if r[0] == self.parallel.data_rank
        ) == context.rank % len(ranks)
        self.saver = Saver(
            context.output_dir,
            keep=options.keep_checkpoints,
            peers=lambda: Peers(context.rank, context.world_size, self.session),
            is_main=context.is_main,
            session=self.session,
            warn=self._warn,
            committed=lambda step, path: spool.put(records.Checkpoint(step=step, name=path.name)),
        )
        self._saves_parts = self.parallel.is_sharded and not options.whole_checkpoints
        if self._saves_parts:
            self.saver.places = find_places(context.output_dir, context.rank, self.session, self._objects.gather)

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
            seed_everything(self.seed, "rank", self.parallel.random_rank)
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
        """Find a checkpoint once there is a model, then load it into the objects that were not loaded yet. Collective."""
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
        """Take a checkpoint of this step. All ranks call it at the same step.

        Args:
            step: Global step.
            about: Description for shoal.json.
            may_skip: Skip this save if the checkpoint before is still being written.
            overlap: Copy parameters during the next iteration instead of now.
            wait: Return when the checkpoint is on disk.
        """
        if self._saves_parts:
            self._save_parts(step, about, may_skip=may_skip, overlap=overlap, wait=wait)
            return
        live = self.parts.files(self.parallel)
        if self._context.is_main and self.saver.is_busy:
            if may_skip and live is not None:
                self.saver.skip(step)
                return
            self.saver.wait_idle()
        self.saver.is_torn = False
        files, late = live if live is not None else (self.parts.whole_files(self.parallel), set())
        taken = LiveState(files, late, self._small(step), dict(about))
        job = self.saver.start(step, taken, overlap=overlap)
        if wait:
            self.saver.wait(job, step)

    def _save_parts(self, step: int, about: Mapping[str, Any], *, may_skip: bool, overlap: bool, wait: bool) -> None:
        """Take a checkpoint of which every rank writes its part. All take it, or none does."""
        if any(self._objects.gather(self.saver.is_busy)):
            if may_skip:
                self.saver.skipped += 1
                return
            self.saver.wait_idle()
            self._objects.gather(
                None
            )  # rank 0 removes unfinished folders at the end of a save: nobody may have begun one
        self.saver.is_torn = False
        split = self.parts.sharded(self.parallel, is_main=self._context.is_main)
        job = self.saver.start(step, LiveState({}, set(), self._small(step), dict(about), split), overlap=overlap)
        if wait:
            self.saver.wait(job, step)

    def restore_generators(self) -> None:
        if self.generators is not None:
            set_rng_state(self.generators, lambda text: self._warn("generators", text))

    def check_data(self) -> None:
        """Warn if a loader that was not prepared gives every rank the same data. Collective; once, after the first step."""
        watch, self._first_batch = self._first_batch, None
        if watch is not None and not self.parts.feeds:
            # If the script wraps the model itself, every rank should read its own share.
            share = self._context.rank if self.parallel.name == "none" else self.parallel.data_rank
            misuse_checks.check_batches(watch, share, self._warn)

    def _watch(self, wrapped: Any, inner: Any) -> None:
        if compiled_from(wrapped) is None:  # a hook inside of it would be compiled, too
            misuse_checks.watch_model(wrapped, inner, self._warn)
        if self._first_batch is None and not self.parts.models and self._context.world_size > 1:
            self._first_batch = misuse_checks.watch_batches(wrapped)

    def _add_model(self, model: Any) -> Any:
        # Noted before wrapping: wrapping may replace the parameters that the optimizer was made with.
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
        """Choose the loader to train on: the first that shuffles, else the first."""
        if self.driver is None and self.parts.feeds:
            self.driver = next((f for f in self.parts.feeds if f.shuffle), self.parts.feeds[0])

    def _find(self) -> None:
        """Find the checkpoint to resume from. Rank 0 decides; it sends the contents to ranks that cannot see its directory."""
        found: Any = None
        if self._context.is_main:
            try:
                found = restore.candidates(self._context, self._options)
            except ShoalError as error:
                found = error
        found = self._objects.from_main(found)
        if isinstance(found, ShoalError):
            raise found
        found = restore.choose(found, self._objects)
        for note in found.notes:
            self._warn("resume", note)
        if found.path is None:
            return
        self.resumed_from, self.resumed_step = found.path, int(found.about["step"])
        self._each_reads = all(self._objects.gather((found.path / "shoal.json").exists()))
        self._reads_parts = layout.is_sharded(found.about) and self.parallel.is_sharded
        self._saved = self._read("training.pt")
        self.is_news = True

    def _read(self, name: str) -> Any:
        """Return the contents of a file of the checkpoint; None if it has no such file. Collective.

        Models and optimizers are read again if more of them are prepared later, rather than kept in memory until then.
        """
        assert self.resumed_from is not None  # noqa: S101
        if self._each_reads:
            return restore.read_file(self.resumed_from, name)
        found: Any = None
        if self._context.is_main:
            try:
                found = restore.read_file(self.resumed_from, name)
            except ShoalError as error:
                found = error
        found = self._objects.from_main(found)
        if isinstance(found, ShoalError):
            raise found
        return found

    def _load(self, training: dict[str, Any]) -> None:
        parts, loaded = self.parts, self._loaded
        if len(parts.models) > loaded["models"] or len(parts.optimizers) > loaded["optimizers"]:
            self._load_big()
        parts.load_small(training, loaded)
        for number in range(loaded["feeds"], min(len(parts.feeds), len(training["loaders"]))):
            self._load_feed(number, training["loaders"][number])
        loaded.update({kind: len(getattr(parts, kind)) for kind in ("models", "optimizers", "schedulers", "scalers")})
        self.schedules_made = int(training["schedules"])
        self.accumulation.replayed_schedules = -1
        states = training["rng"]
        if len(states) == self._context.world_size:
            self.generators = states[self.parallel.random_rank]
            self.restore_generators()
        else:
            self._warn(
                "generators",
                f"the checkpoint was saved by {len(states)} workers, this run has {self._context.world_size}: "
                "random generators (dropout) are seeded again",
            )
            seed_everything(self.seed, "rank", self.parallel.random_rank, self.resumed_step)

    def _load_big(self) -> None:
        if not self._reads_parts:
            self.parts.load_big(self.parallel, self._read)
            return
        assert self.resumed_from is not None  # noqa: S101
        lists: Any = None
        if self._each_reads or self._context.is_main:
            lists = restore.read_lists(self.resumed_from)
        if not self._each_reads:
            lists = self._objects.from_main(lists)
        skeleton, index = lists
        failed: ShoalError | None = None
        try:
            self.parts.load_big(self.parallel, skeleton.get, Shards(self.resumed_from, index))
        except ShoalError as error:
            failed = error
        # Each rank has read by itself: if one could not, the others must not wait for it in the next step.
        found = next(filter(None, [failed, *self._objects.gather(failed)]), None)
        if found is not None:
            raise found

    def _load_feed(self, number: int, state: Mapping[str, Any]) -> None:
        feed, loader = self.parts.feeds[number], self.parts.loaders[number]
        if isinstance(feed, DealtFeed) and feed.dealing.size != state.get("size", feed.dealing.size):
            size = feed.dealing.size
            self._warn("data_changed", f"{feed.name} has {size} samples; the checkpoint was made with {state['size']}")
        if isinstance(feed, DealtFeed) != ("global_batch" in state):
            self._warn(
                "data_changed", f"{feed.name} is another kind of loader than in the checkpoint: it starts at epoch 0"
            )
            return
        feed.load(state, skip=feed is self.driver)
        if "stream" in state and keeps_state(loader):
            load_stream(loader, state["stream"])

    def _describe(self, feed: Feed) -> None:
        """Write the record that describes a feed after a resume; the lines of the sample log refer to it."""
        if not isinstance(feed, DealtFeed):
            return
        dealing = feed.dealing
        if self._logs_samples:
            ledger = SampleLog(
                self._spool.put, name=feed.name, session=self.session, rank=feed.rank, world=dealing.world
            )
            self.ledgers.append((feed, ledger))
        if self._context.is_main:
            described = records.Data(
                name=feed.name,
                size=dealing.size,
                seed=feed.seed,
                batch=dealing.global_batch,
                drop_last=dealing.drop_last,
                shuffle=feed.shuffle,
                session=self.session,
                resumed_step=self.resumed_step,
            )
            self._spool.put(described)

    def _small(self, step: int) -> dict[str, Any]:
        driver, made = self.driver, self.accumulation.schedules
        return {
            "step": step,
            "seed": self.seed,
            "world_size": self._context.world_size,
            # Number of scheduler.step calls made since the last pass ended; -1 (all) within a pass.
            "schedules": -1 if driver is None or driver.is_open else made,
            "configs": self.parts.configs(self.parallel),
            **self.parts.small(lambda what: self._warn("not_saved", f"{what} is not saved: its type is not supported")),
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
            "device": self.device.type,
            "deterministic": is_deterministic(),
        }

    def _samples(self) -> int | None:
        """Return the number of samples behind this step's gradients; None if a step takes several batches."""
        now = self.driver.now if self.driver is not None and self._options.accumulate == 1 else None
        return now.used if now is not None else None

    def _warn(self, code: str, text: str) -> None:
        if (code, text) in self._warned:
            return
        self._warned.add((code, text))
        self._spool.put(records.Warning(code=code, text=text))
        if self._context.is_main:
            warnings.warn(f"shoal: {text}", stacklevel=2)


def _inner(model: Any) -> Any:
    """Return the module inside a DistributedDataParallel that the script made itself, compiled or not; others as they are."""
    for found in (model, compiled_from(model)):
        if isinstance(found, torch.nn.parallel.DistributedDataParallel):
            return found.module
    return model
