"""Saving and going on within one process: every kind of object, every way to write the loop."""

import errno
import itertools
import os
import zipfile

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

import shoal
from shoal.core.errors import Corrupt, StorageFull
from shoal.sdk.saving import archive, layout, writer

pytestmark = pytest.mark.torch

SIZE = 22


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def _few_threads():
    torch.set_num_threads(1)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


def data(**options):
    x = torch.arange(SIZE * 3, dtype=torch.float32).reshape(SIZE, 3) / 50
    return DataLoader(TensorDataset(x, x.sum(1), torch.arange(SIZE)), batch_size=4, **{"shuffle": True, **options})


def train(
    directory, *, kill_after=None, loop="range", per_epoch=False, make=make_model, hook=None, scaler=None, **init
):
    """Three epochs; returns what came out. Raises Killed after so many iterations, leaving everything as a crash would."""
    options = {"checkpoint_every": 1, "checkpoint_every_s": None, "seed": 5, "dir": directory, **init}
    run = shoal.init("t", **options)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3, 7], gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) if scaler else None
    objects = [model, optimizer, scheduler, data(), *([scaler] if scaler else [])]
    model, optimizer, scheduler, loader, *_ = run.prepare(*objects)
    order, done = [], 0
    try:
        epochs = range(3) if loop == "range" else range(run.start_epoch, 3) if loop == "start" else run.epochs(3)
        for _ in epochs:
            for x, y, index in loader:
                optimizer.zero_grad()
                if hook:
                    hook(model, run)
                loss = ((model(x)[:, 0] - y) ** 2).mean()
                if scaler:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                if kill_after is not None and done >= kill_after - 2:
                    run._training._setup.saver.wait_idle()  # so that this step is not left out
                run.step(loss=loss)
                if not per_epoch:
                    scheduler.step()
                order.append(index.tolist())
                done += 1
                if done == kill_after:
                    raise Killed
            if per_epoch:
                scheduler.step()
        run.checkpoint(wait=True)
    except Killed:
        pass
    run.finish(status="failed" if done == kill_after else "finished")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"], "lr": scheduler.get_last_lr()}
    return {
        **state,
        "order": order,
        "rng": torch.get_rng_state(),
        "step": run.global_step,
        "last": scheduler.last_epoch,
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b


def assert_same_end(whole, *pieces):
    last = {**pieces[-1], "order": None}
    for key in ("model", "optimizer", "lr", "rng", "step", "last"):
        assert same(whole[key], last[key]), key


@pytest.mark.parametrize("loop", ["range", "start", "epochs"])
@pytest.mark.parametrize("per_epoch", [False, True])
@pytest.mark.parametrize("kill_after", [1, 6, 17])
def test_any_form_of_the_loop_goes_on_where_it_was(tmp_path, kill_after, per_epoch, loop):
    whole = train(tmp_path / "whole", loop=loop, per_epoch=per_epoch)
    first = train(tmp_path / "broken", loop=loop, per_epoch=per_epoch, kill_after=kill_after)
    second = train(tmp_path / "broken", loop=loop, per_epoch=per_epoch)
    assert_same_end(whole, second)
    resumed = second["step"] - len(second["order"])
    assert kill_after - 1 <= resumed <= kill_after
    assert first["order"][:resumed] + second["order"] == whole["order"]


def test_a_scaler_is_restored_with_its_scale_and_growth(tmp_path):
    whole = train(tmp_path / "whole", scaler=True)
    train(tmp_path / "broken", scaler=True, kill_after=8)
    assert_same_end(whole, train(tmp_path / "broken", scaler=True))


def test_tied_weights_are_written_once_and_restored(tmp_path):
    def tied():
        model = make_model()
        model.append(nn.Linear(1, 1))
        model.append(nn.Linear(1, 1))
        model[6].weight = model[5].weight
        return model

    whole = train(tmp_path / "whole", make=tied)
    train(tmp_path / "broken", make=tied, kill_after=8)
    assert_same_end(whole, train(tmp_path / "broken", make=tied))
    path = layout.saved_in(tmp_path / "whole" / "checkpoints")[0]
    state = torch.load(path / "model.pt", weights_only=True)
    assert state["5.weight"].data_ptr() == state["6.weight"].data_ptr()
    tied().load_state_dict(state, strict=True)


def large():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 20_000), nn.ReLU(), nn.Linear(20_000, 1))


def test_a_write_to_a_parameter_during_the_copy_is_noticed_and_saved_anew(tmp_path):
    def write(model, run):
        if run.global_step == 7:
            with torch.no_grad():
                model[0].weight.mul_(0.5)

    with pytest.warns(UserWarning, match="writes to the parameters during an iteration"):
        train(tmp_path, make=large, hook=write, kill_after=9, checkpoint_every=7)
    steps = [layout.step_of(path) for path in layout.saved_in(tmp_path / "checkpoints")]
    assert steps == [8], "the copy of step 7 was thrown away, and that of step 8 made at once"


def test_steps_wait_for_the_copy_so_that_it_is_of_one_instant(tmp_path):
    seen = {}

    def note(model, run):
        seen[run.global_step] = {k: v.clone() for k, v in model.state_dict().items()}

    train(tmp_path, make=large, hook=note, checkpoint_every=1, keep_checkpoints=100)
    saved = [path for path in layout.saved_in(tmp_path / "checkpoints") if layout.step_of(path) in seen]
    assert saved
    for path in saved:
        assert same(dict(torch.load(path / "model.pt", weights_only=True)), seen[layout.step_of(path)])


def test_accumulated_pieces_give_the_gradient_of_the_whole_batch(tmp_path):
    def model():
        torch.manual_seed(0)
        return nn.Linear(3, 1)

    def once(directory, batch_size, accumulate):
        run = shoal.init("t", dir=directory, seed=1, accumulate=accumulate, checkpoint_every_s=None)
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        x = torch.arange(SIZE * 3, dtype=torch.float32).reshape(SIZE, 3) / 50
        loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=batch_size, shuffle=True)
        net, optimizer, scheduler, loader = run.prepare(net, optimizer, scheduler, loader)
        for _ in range(2):
            for a, b in loader:
                optimizer.zero_grad()
                (((net(a)[:, 0] - b) ** 2).mean() + 0.01 * net.weight.square().sum()).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                run.step(loss=1.0)
        steps = run.global_step
        run.finish()
        return net.weight.detach(), steps, len(loader), scheduler.last_epoch

    whole, steps, length, last = once(tmp_path / "a", 12, 1)
    pieces, piece_steps, piece_length, piece_last = once(tmp_path / "b", 3, 4)
    assert (steps, length, last) == (4, 2, 4)
    assert (piece_steps, piece_length, piece_last) == (4, 8, 4)
    torch.testing.assert_close(pieces, whole)


def test_gradients_gathered_by_the_script_itself_are_not_lost_in_a_save(tmp_path):
    def gather(directory, kill_after=None):
        run = shoal.init("t", dir=directory, seed=1, checkpoint_every=1, checkpoint_every_s=None)
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer, loader = run.prepare(net, optimizer, data())
        try:
            for _ in range(4):
                for x, y, _ in loader:
                    (((net(x)[:, 0] - y) ** 2).mean() / 3).backward()
                    if (run.global_step + 1) % 3 == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                    run._training._setup.saver.wait_idle()
                    run.step(loss=1.0)
                    if run.global_step == kill_after:
                        raise Killed
        except Killed:
            pass
        run.finish(status="failed" if kill_after else "finished")
        return net.weight.detach()

    whole = gather(tmp_path / "whole")
    gather(tmp_path / "broken", kill_after=11)
    steps = [layout.step_of(p) for p in layout.saved_in(tmp_path / "broken" / "checkpoints")]
    assert steps == [9, 6]
    assert torch.equal(gather(tmp_path / "broken"), whole)


def test_a_look_at_the_first_batch_and_an_evaluation_leave_the_position_alone(tmp_path):
    def looked(directory, kill_after=None):
        run = shoal.init("t", dir=directory, seed=1, checkpoint_every=1, checkpoint_every_s=None)
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer, loader, held_out = run.prepare(net, optimizer, data(), data(shuffle=False))
        next(iter(loader))
        order, evaluated = [], []
        try:
            for epoch in range(3):
                loader.sampler.set_epoch(epoch)
                for x, _, index in loader:
                    net(x).sum().backward()
                    optimizer.step()
                    run._training._setup.saver.wait_idle()
                    run.step(loss=1.0)
                    order.append(index.tolist())
                    if run.global_step == kill_after:
                        raise Killed
                evaluated.append(sum(len(index) for _, _, index in held_out))
        except Killed:
            pass
        run.finish(status="failed" if kill_after else "finished")
        return order, evaluated

    whole, evaluated = looked(tmp_path / "whole")
    assert evaluated == [SIZE] * 3
    assert sorted(itertools.chain.from_iterable(whole[:6])) == list(range(SIZE))
    first, _ = looked(tmp_path / "broken", kill_after=14)
    second, evaluated = looked(tmp_path / "broken")
    assert first[: 18 - len(second)] + second == whole
    assert evaluated == [4, 4, SIZE], "epochs that are only passed over are not evaluated again"


def test_samplers_of_the_script_are_honoured(tmp_path):
    run = shoal.init("t", dir=tmp_path, seed=1, checkpoint_every_s=None)
    dataset = TensorDataset(torch.arange(10))
    own = RandomSampler(dataset, replacement=True, num_samples=6)
    in_order = run.prepare(DataLoader(dataset, batch_size=3))
    spread = run.prepare(DataLoader(dataset, batch_size=3, sampler=DistributedSampler(dataset, 1, 0, shuffle=False)))
    with pytest.warns(UserWarning, match="RandomSampler keeps its order"):
        foreign = run.prepare(DataLoader(dataset, batch_size=3, sampler=own))
    assert isinstance(in_order, DataLoader)
    assert in_order.batch_size == 3 and in_order.dataset is dataset
    for loader in (in_order, spread):
        assert torch.cat([b for (b,) in loader]).tolist() == list(range(10))
        assert len(loader) == 4
    assert len(list(foreign)) == 2
    run.finish()


def test_a_damaged_checkpoint_is_named_and_never_a_silent_new_start(tmp_path):
    train(tmp_path, kill_after=5)
    for path in layout.saved_in(tmp_path / "checkpoints"):
        file = path / "optimizer.pt"
        file.write_bytes(file.read_bytes()[:-1])
    run = shoal.init("t", dir=tmp_path)
    with pytest.raises(Corrupt, match=r"optimizer\.pt has \d+ bytes instead of"):
        run.prepare(make_model())
    run.finish(status="failed")
    run = shoal.init("t", dir=tmp_path, resume="never")
    run.prepare(make_model())
    assert run.global_step == 0
    run.finish(status="failed")


def test_a_directory_of_somebody_elses_is_left_to_the_script(tmp_path, monkeypatch):
    other = tmp_path / "checkpoint-500"
    other.mkdir()
    (other / "trainer_state.json").write_text("{}")
    monkeypatch.setenv("SHOAL_RESUME_FROM", str(other))
    run = shoal.init("t", dir=tmp_path / "run")
    with pytest.warns(UserWarning, match="the script has to load it itself"):
        run.prepare(make_model())
    assert not run.resumed
    run.finish()


def test_a_full_disk_costs_that_checkpoint_only(tmp_path, monkeypatch):
    real, full = os.write, []

    def write(fd, piece):
        if full and len(piece) > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, piece)

    run = shoal.init("t", dir=tmp_path, checkpoint_every_s=None)
    run.prepare(make_model(), data())
    run.checkpoint(wait=True)
    monkeypatch.setattr(archive.os, "write", write)
    full.append(True)
    with pytest.raises(StorageFull, match="the disk is full"), pytest.warns(UserWarning, match="was not saved"):
        run.checkpoint(wait=True)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == [layout.name_of(0)]
    full.clear()
    run.checkpoint(wait=True)
    layout.verify(layout.saved_in(tmp_path / "checkpoints")[0])
    run.finish()


def test_what_is_written_is_a_plain_archive_of_torchs(tmp_path):
    shared = torch.arange(10, dtype=torch.float64)
    value = {
        "a": shared,
        "b": shared,
        "h": torch.ones(3, dtype=torch.bfloat16),
        "e": torch.empty(0),
        "n": [1, "x", None],
    }
    value |= {"t": torch.arange(6).reshape(2, 3).t(), "i": torch.tensor(7, dtype=torch.uint8), "l": (True, 2.5)}
    told = archive.write_archive(tmp_path / "x.pt", value)
    assert told == {"size": (tmp_path / "x.pt").stat().st_size, "blake2b": layout.hash_of(tmp_path / "x.pt")}
    assert zipfile.ZipFile(tmp_path / "x.pt").testzip() is None
    for options in ({}, {"mmap": True}):
        read = torch.load(tmp_path / "x.pt", weights_only=True, **options)
        assert same(read, value)
        assert read["a"].data_ptr() == read["b"].data_ptr()


def test_an_archive_is_on_the_disk_when_it_is_written(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (fsync(fd), synced.append(os.fstat(fd)))[0])
    archive.write_archive(tmp_path / "x.pt", {"a": torch.ones(3)})
    written = (tmp_path / "x.pt").stat()
    assert [(found.st_ino, found.st_size) for found in synced] == [(written.st_ino, written.st_size)]


def test_only_the_newest_are_kept_and_leftovers_swept(tmp_path):
    for step in (1, 2, 3, 4):
        (tmp_path / layout.name_of(step)).mkdir()
        (tmp_path / layout.name_of(step) / layout.ABOUT).write_text("{}")
    (tmp_path / ".tmp-step-000000009").mkdir()
    (tmp_path / "mine").mkdir()
    layout.prune(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", layout.name_of(3), layout.name_of(4)]


def test_errors_of_the_writer_are_explained():
    assert isinstance(writer.explained(OSError(errno.ENOSPC, "full", "x")), StorageFull)
    assert "RuntimeError: boom" in str(writer.explained(RuntimeError("boom")))
