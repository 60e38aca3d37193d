"""A failed step is kept, replayed to the same exception, and never taken for a checkpoint."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from shoal.agent.data.bug_capsules import capsules_in, holds_capsules  # noqa: E402
from shoal.sdk.saving import layout  # noqa: E402
from shoal.sdk.saving.rng import packed, raw_rng_state, set_rng_state  # noqa: E402
from shoal.train import Params, Trainer  # noqa: E402
from shoal.train.bug import KEPT, Capsules, NonFiniteLoss, entry, is_of_a_peer  # noqa: E402
from shoal.train.frames import keepable, own_copy  # noqa: E402

BAD = 3


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder to train in, with nobody's environment."""
    for name in [n for n in os.environ if n.startswith("SHOAL_") or n in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return tmp_path


class Batches:
    """Step BAD's batch holds a NaN."""

    samples = 8

    def __init__(self, plant: float = float("nan")):
        self._plant = plant

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def __iter__(self):
        for i in range(8):
            x = torch.full((4, 3), float(i))
            if i + 1 == BAD:
                x[1, 2] = self._plant
            yield 0, (x, torch.ones(4, 1))


def make(kind=None, plant=float("nan")):
    class Mine(kind or Squares):
        def training_data(self):
            return Batches(plant)

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    return Mine(Params(max_steps=6, batch_size=4, lr=0.1, train_samples=8), model)


class Squares(Trainer):
    def train_batch(self, batch):
        x, y = batch
        scale = 2.0
        made = self.model(x) * scale
        return torch.nn.functional.mse_loss(made, y)


def look_up(table, key):
    wanted = key * 2
    return table[wanted]


class Raises(Trainer):
    def train_batch(self, batch):
        x, _ = batch
        if bool(torch.isnan(x).any()):
            drawn = f"{torch.rand(()).item()} {random.random()} {numpy.random.rand()}"
            look_up({1: drawn}, drawn)
        return self.model(x).square().mean()


def failed(trainer, error):
    with pytest.raises(error) as caught:
        trainer.fit()
    (capsule,) = Path.cwd().glob("shoal-runs/*/checkpoints/bug/step-*")
    return caught.value, capsule


def test_a_loss_that_is_not_finite_ends_the_training_with_the_reason(here):
    error, capsule = failed(make(), NonFiniteLoss)
    assert str(error) == "the loss of step 3 is nan; the batch has 1 values in 0 that are not finite either"
    about = json.loads((capsule / "capsule.json").read_text())
    assert (about["step"], about["rank"], about["trainer"]["seen"]) == (3, 0, 8)
    assert about["error"]["type"] == "NonFiniteLoss" and about["problems"] == [] and about["non_finite"] == []
    assert about["batch"][0] == {
        "path": "0", "shape": [4, 3], "dtype": "float32", "min": 2.0, "max": 2.0, "non_finite": 1,
    }  # fmt: skip
    x, y = torch.load(capsule / "batch.pt")
    assert bool(torch.isnan(x[1, 2])) and x.shape == (4, 3) and y.shape == (4, 1)


def test_the_variables_of_train_batch_are_kept_also_for_a_loss(here):
    _, capsule = failed(make(), NonFiniteLoss)
    kept = torch.load(capsule / "locals.pt")
    assert kept["scale"] == 2.0 and kept["made"].shape == (4, 1)
    about = json.loads((capsule / "capsule.json").read_text())
    assert about["where"]["function"] == "train_batch" and about["left_out"] == {"self": "a make.<locals>.Mine"}


def test_of_an_exception_the_innermost_frame_of_the_users_code_is_kept(here):
    _, capsule = failed(make(Raises), KeyError)
    about = json.loads((capsule / "capsule.json").read_text())
    assert about["where"]["function"] == "look_up" and about["where"]["file"] == __file__
    assert set(torch.load(capsule / "locals.pt")) == {"table", "key", "wanted"}
    assert "look_up(" in about["error"]["traceback"]


def test_a_replay_comes_to_the_same_exception_with_the_same_random_numbers(here, monkeypatch, capfd):
    error, capsule = failed(make(Raises), KeyError)
    torch.rand(7), random.random(), numpy.random.rand()
    monkeypatch.setenv("SHOAL_REPLAY", str(capsule))
    monkeypatch.setenv("SHOAL_REPLAY_RESULT", str(here / "result"))
    with pytest.raises(KeyError) as again:
        make(Raises).fit()
    assert str(again.value) == str(error)
    assert json.loads((here / "result").read_text())["outcome"] == "again"
    assert "It happened again." in capfd.readouterr().err
    assert len(list(here.glob("shoal-runs/*"))) == 1, "a replay leaves nothing behind"


def test_a_replay_takes_the_weights_of_the_capsule(here, monkeypatch):
    _, capsule = failed(make(), NonFiniteLoss)
    kept = torch.load(capsule / "model.pt")
    monkeypatch.setenv("SHOAL_REPLAY", str(capsule))
    trainer = make()
    assert not torch.equal(trainer.model[0].weight, kept["0.weight"])
    with pytest.raises(NonFiniteLoss):
        trainer.fit()
    assert torch.equal(trainer.model[0].weight, kept["0.weight"])
    assert (trainer.state.steps, trainer.state.seen) == (2, 8)


def test_a_replay_names_the_module_that_makes_it_not_finite(here, monkeypatch, capfd):
    class Blows(torch.nn.Module):
        def forward(self, x):
            return x / (x - 2.0)

    def model():
        trainer = make(plant=2.0)
        trainer.model.insert(0, Blows())
        return trainer

    _, capsule = failed(model(), NonFiniteLoss)
    monkeypatch.setenv("SHOAL_REPLAY", str(capsule))
    with pytest.raises(NonFiniteLoss):
        model().fit()
    assert "The first module whose result is not finite: 0 (Blows)" in capfd.readouterr().err


def test_a_mended_script_does_not_fail_again_and_says_so(here, monkeypatch, capfd):
    class Mended(Squares):
        def train_batch(self, batch):
            x, y = batch
            return super().train_batch((torch.nan_to_num(x), y))

    _, capsule = failed(make(), NonFiniteLoss)
    monkeypatch.setenv("SHOAL_REPLAY", str(capsule))
    monkeypatch.setenv("SHOAL_REPLAY_RESULT", str(here / "result"))
    with pytest.raises(SystemExit) as left:
        make(Mended).fit()
    assert left.value.code == 0
    assert json.loads((here / "result").read_text()) == {"outcome": "not again", "step": 3, "error": None}
    assert "It did not happen again: the loss is" in capfd.readouterr().err


def test_another_exception_is_told_apart(here, monkeypatch, capfd):
    class Typo(Squares):
        def train_batch(self, batch):
            return self.modle(batch)

    _, capsule = failed(make(), NonFiniteLoss)
    monkeypatch.setenv("SHOAL_REPLAY", str(capsule))
    with pytest.raises(AttributeError):
        make(Typo).fit()
    assert "A different exception than in the run: AttributeError" in capfd.readouterr().err


def test_a_model_of_another_shape_is_refused_in_words(here, monkeypatch):
    from shoal.core.errors import UsageError

    _, capsule = failed(make(), NonFiniteLoss)
    monkeypatch.setenv("SHOAL_REPLAY", str(capsule))
    other = make()
    other.model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="not match the one in the capsule"):
        other.fit()


def test_a_capsule_is_never_resumed_from(here):
    _, capsule = failed(make(), NonFiniteLoss)
    output = capsule.parent.parent
    assert holds_capsules(capsule.parent) and capsules_in(capsule.parent) == [capsule]
    assert all(not path.is_relative_to(capsule.parent) for path in layout.saved_in(output))
    assert layout.step_of(capsule) is None


def save(directory, step=1, rank=0, error=None, batch=None):
    model = torch.nn.Linear(2, 2)
    return Capsules(directory, rank).save(
        error or ValueError("no"), batch=batch, model=model, rng=raw_rng_state(), about={"step": step, "seen": 0}
    )


def test_what_cannot_be_written_is_a_warning_and_nothing_more(tmp_path, caplog):
    (tmp_path / "bug").write_text("a file is in the way")
    with caplog.at_level(logging.WARNING):
        assert save(tmp_path / "bug") is None
    assert "could not be saved" in caplog.text


def test_a_batch_that_cannot_be_pickled_leaves_the_rest(tmp_path):
    path = save(tmp_path, batch=(torch.zeros(2), lambda: 1))
    about = json.loads((path / "capsule.json").read_text())
    assert about["problems"][0].startswith("batch.pt could not be written")
    assert {p.name for p in path.iterdir()} == {"capsule.json", "rng.pt", "model.pt", "locals.pt"}


def test_a_worker_that_lost_another_keeps_nothing(tmp_path):
    lost = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242")
    assert is_of_a_peer(lost) and not is_of_a_peer(RuntimeError("shapes do not fit"))
    assert save(tmp_path, error=lost) is None and not list(tmp_path.iterdir())


def test_only_the_newest_of_a_worker_stay(tmp_path):
    for step in range(1, KEPT + 4):
        path = save(tmp_path, step=step)
        os.utime(path, (step, step))
    save(tmp_path, step=1, rank=1)
    left = [p.name for p in capsules_in(tmp_path)]
    assert left == ["step-000000001-rank-1", *(f"step-{s:09d}-rank-0" for s in range(4, KEPT + 4))]


def test_the_file_of_a_slice_holds_the_slice_only(tmp_path):
    whole = torch.zeros(1_000_000)
    path = save(tmp_path, batch=whole[:10])
    assert (path / "batch.pt").stat().st_size < 10_000
    part = whole[:10]
    assert own_copy(part).untyped_storage().nbytes() == 40 and own_copy(whole) is not part


def test_local_variables_are_sorted_into_what_can_be_kept_and_why_not():
    import threading

    kept, left = keepable(
        {
            "a": 1, "b": "text", "c": [1, (2.0, {"x": torch.ones(2)})], "d": numpy.arange(3), "e": threading.Lock(),
            "f": [threading.Lock()], "g": torch.nn.Linear(1, 1), "h": None, "i": {3: {1, 2}},
        }
    )  # fmt: skip
    assert set(kept) == {"a", "b", "c", "d", "h", "i"} and kept["d"].tolist() == [0, 1, 2]
    assert left == {"e": "a lock", "f": "a lock", "g": "a Linear"}


def test_the_command_line_of_a_worker_is_found_behind_the_interpreters_options():
    assert entry(["python3", "-u", "-X", "dev", "train.py", "-m", "x"]) == ["train.py", "-m", "x"]
    assert entry(["python3", "-u", "-m", "pkg.train", "--lr", "1"]) == ["-m", "pkg.train", "--lr", "1"]


def draw(kind):
    if kind == 0:
        return numpy.random.randn()  # makes two, gives one
    if kind == 1:
        return numpy.random.rand()
    return (torch.rand(()).item(), random.random())[kind - 2] if kind < 4 else None


@pytest.mark.parametrize("seed", range(20))
def test_generators_come_back_to_where_they_were_whatever_was_drawn_between_two_looks(seed):
    chosen = random.Random(seed)
    numpy.random.seed(seed)
    for _ in range(30):
        for _ in range(chosen.randrange(3)):
            draw(chosen.randrange(5))
        raw, kinds = raw_rng_state(), [chosen.randrange(4) for _ in range(chosen.randrange(4))]
        first = [draw(kind) for kind in kinds]
        after = raw_rng_state()
        set_rng_state(packed(raw))
        assert [draw(kind) for kind in kinds] == first
        set_rng_state(packed(after))
