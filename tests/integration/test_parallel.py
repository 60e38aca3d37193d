"""Parallelism with real processes on the loopback: every way trains as one plain process would."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import parallel_models as models  # noqa: E402

from shoal.core.ports import free_port  # noqa: E402
from shoal.testing.forks import HUGGING_FACE, Fork  # noqa: E402
from shoal.testing.patience import patient  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.torch]

WORKER = Path(__file__).with_name("parallel_worker.py")
TIMEOUT_S = 240
STEPS = 20
TWO, FOUR = ["ddp", "fsdp", "pipeline", "tp", "cp"], ["ddp-fsdp", "ddp-pipeline", "fsdp-tp"]
WAYS = [*TWO, *FOUR]
PAIR = [
    *TWO,
    *("gpt2-pipeline", "gpt2-fsdp", "llama-pipeline", "llama-fsdp", "gpt2-tp", "gpt2-cp", "llama-tp", "llama-cp"),
    *("accumulation-tp", "accumulation-cp", "dropout-tp", "own-plan", "odd-lengths", "refused-meshes"),
    *("conditioned", "residual-outside", "chain", "recompute"),
    *("accumulation-told", "accumulation-untold", "accumulation-fsdp", "accumulation-ddp"),
    *("odd-batches", "mixed-precision", "overflow", "frozen", "averaged-copy", "bare-model", "same-data", "rendezvous"),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of each of two processes, by scenario."""
    return launch(tmp_path_factory.mktemp("pair"), 2, PAIR)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(tmp_path_factory.mktemp("four"), 4, [*FOUR, "four-stages"])


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The same training in this one process."""
    torch.manual_seed(0)
    model = models.GPT()
    optimizer = models.two_groups(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return {
        "losses": models.train(model, optimizer, STEPS),
        "on": models.train(model, optimizer, 4, skip=STEPS),
        "size": sum(param.numel() for param in model.parameters()),
    }


def launch(directory: Path, world: int, scenarios: list[str]) -> list[dict[str, Any]]:
    """Return the results of each rank, by scenario."""
    processes = run(directory, world, scenarios)
    codes = [process.returncode for process in processes]
    logs = "\n".join((directory / f"log.{rank}").read_text()[-4000:] for rank in range(world))
    assert codes == [0] * world, f"{codes}\n{logs}"
    return [torch.load(f"{directory / 'results'}.{rank}", weights_only=False) for rank in range(world)]


def run(directory: Path, world: int, scenarios: list[str]) -> list[Fork]:
    """Workers from start to end; none is left behind."""
    ports = [free_port(), free_port()]
    processes = []
    try:
        for rank in range(world):
            env = {
                **os.environ,
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "HF_HUB_OFFLINE": "1"},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0]), "SECOND_PORT": str(ports[1])},
            }
            command = [sys.executable, str(WORKER), str(directory / "results"), *scenarios]
            with (directory / f"log.{rank}").open("w") as log:
                processes.append(Fork(command, modules=HUGGING_FACE, env=env, stdout=log, stderr=log))
        for process in processes:
            process.wait(patient(TIMEOUT_S))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return processes


@pytest.fixture
def found(request: pytest.FixtureRequest, way: str) -> dict[str, Any]:
    ranks: list[dict[str, Any]] = request.getfixturevalue("four" if way in FOUR else "pair")
    return ranks[0][way]


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_curve_is_that_of_one_process(way: str, found: dict[str, Any], plain: dict[str, Any]) -> None:
    assert plain["losses"][-1] < plain["losses"][0] - 1.0
    assert found["losses"] == pytest.approx(plain["losses"], abs=2e-5)


@pytest.mark.parametrize("way", WAYS)
def test_the_full_state_is_a_plain_checkpoint(way: str, found: dict[str, Any], plain: dict[str, Any]) -> None:
    model = models.GPT()
    optimizer = models.two_groups(model)
    state, (optimizer_state,) = found["state"]
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state, strict=True)
    optimizer.load_state_dict(optimizer_state)
    with torch.no_grad():
        logits = model(next(models.batches(1))[0])
    torch.testing.assert_close(logits, found["logits"], atol=1e-5, rtol=1e-5)
    assert models.train(model, optimizer, 4, skip=STEPS) == pytest.approx(plain["on"], abs=5e-5)


@pytest.mark.parametrize("way", WAYS)
def test_loading_the_full_state_goes_on_from_there(way: str, found: dict[str, Any], plain: dict[str, Any]) -> None:
    assert found["on"] == pytest.approx(plain["on"], abs=5e-5)
    assert found["again"] == pytest.approx(found["on"], abs=2e-6)


def test_weights_on_several_stages_stay_equal_to_the_bit(
    pair: list[dict[str, Any]], four: list[dict[str, Any]]
) -> None:
    assert pair[0]["pipeline"]["drifted"] == []
    assert four[0]["ddp-pipeline"]["drifted"] == []


def test_each_worker_knows_its_share_of_the_data(pair: list[dict[str, Any]], four: list[dict[str, Any]]) -> None:
    assert [ranks["ddp"]["share"] for ranks in pair] == [(0, 2), (1, 2)]
    assert [ranks["fsdp"]["share"] for ranks in pair] == [(0, 2), (1, 2)]
    assert [ranks["pipeline"]["share"] for ranks in pair] == [(0, 1), (0, 1)]
    assert [ranks["tp"]["share"] for ranks in pair] == [ranks["cp"]["share"] for ranks in pair] == [(0, 1), (0, 1)]
    assert [ranks["fsdp-tp"]["share"] for ranks in four] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [ranks["ddp-fsdp"]["share"] for ranks in four] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [ranks["ddp-pipeline"]["share"] for ranks in four] == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_sharding_and_stages_free_memory(pair: list[dict[str, Any]], plain: dict[str, Any]) -> None:
    assert pair[0]["ddp"]["held"] == plain["size"]
    assert pair[0]["fsdp"]["held"] < 0.55 * plain["size"]
    assert pair[0]["cp"]["held"] < 0.55 * plain["size"]
    assert pair[0]["pipeline"]["held"] < 0.6 * plain["size"]
    assert pair[0]["tp"]["held"] < 0.7 * plain["size"], "the attention of nn.MultiheadAttention stays whole"


def test_only_a_rank_with_everything_offers_live_state(pair: list[dict[str, Any]]) -> None:
    assert [pair[0][way]["live"] for way in TWO] == [True, False, False, False, False]


@pytest.mark.parametrize("way", ["pipeline", "fsdp", "tp", "cp"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_hugging_face_models_train_as_in_one_process(kind: str, way: str, pair: list[dict[str, Any]]) -> None:
    found = pair[0][f"{kind}-{way}"]
    torch.manual_seed(0)
    model = models.hf_model(kind)
    optimizer = models.two_groups(model)
    even = way == "fsdp"
    data = even_rows(6) if even else models.hf_batches(6)
    assert found["losses"] == pytest.approx(models.hf_train(model, optimizer, data), abs=2e-5)
    fresh = models.hf_model(kind).eval()
    fresh.load_state_dict(found["state"], strict=True)
    with torch.no_grad():
        logits = fresh(**next(models.hf_batches(1))).logits
    torch.testing.assert_close(logits, found["logits"], atol=1e-5, rtol=1e-5)
    assert found["kind"] == type(model(**next(models.hf_batches(1)))).__name__


def even_rows(steps: int) -> Any:
    """The batches two workers share, whole."""
    shares = zip(*(models.hf_batches(steps, share, 2) for share in (0, 1)), strict=True)
    for parts in shares:
        yield {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


@pytest.mark.parametrize(
    ("scenario", "make"),
    [
        ("conditioned", models.Conditioned),
        ("residual-outside", models.ResidualOutside),
        ("chain", models.Chain),
        ("recompute", lambda: models.GPT(depth=2)),
        ("four-stages", models.GPT),
    ],
)
def test_pipelines_of_other_shapes_train_as_in_one_process(
    scenario: str, make: Any, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue("four" if scenario == "four-stages" else "pair")[0][scenario]
    torch.manual_seed(0)
    model = make()
    losses = models.train(model, models.two_groups(model), 6)
    assert found["losses"] == pytest.approx(losses, abs=2e-5)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found["state"][0][name], tensor, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("scenario", ["told", "untold", "fsdp", "ddp", "tp", "cp"])
def test_gradients_accumulate_over_parts_of_a_batch(scenario: str, pair: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = models.GPT(depth=2)
    optimizer = models.two_groups(model)
    for x, y in models.batches(4):
        models.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    state, _ = pair[0][f"accumulation-{scenario}"]["state"]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state[name], tensor, atol=1e-4, rtol=1e-4, msg=name)


def test_workers_that_compute_the_same_values_drop_the_same_ones(pair: list[dict[str, Any]]) -> None:
    assert pair[0]["dropout-tp"] == pair[1]["dropout-tp"]


def test_a_plan_of_the_scripts_own_says_what_is_divided(pair: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = models.GPT(depth=2)
    found = pair[0]["own-plan"]
    assert found["losses"] == pytest.approx(models.train(model, models.two_groups(model), 4), abs=2e-5)
    first = [f"blocks.0.mlp.{name}" for name in ("0.weight", "0.bias", "2.weight")]
    assert found["divided"] == [*first, "blocks.1.mlp.0.weight", "blocks.1.mlp.0.bias"]


def test_sequences_that_cannot_be_shared_evenly_are_computed_by_each(pair: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = models.GPT(depth=2)
    optimizer = models.two_groups(model)
    losses = []
    for length in (12, 11, 12, 1):
        x, y = (part[:, :length] for part in next(models.batches(1)))
        losses.append(models.cross_entropy(model(x), y))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in pair:
        assert found["odd-lengths"]["losses"] == pytest.approx([loss.item() for loss in losses], abs=2e-5)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("by-hand", "does not compute its attention by torch.nn.functional.scaled_dot_product_attention"),
        ("own-places", "computes something else on a part of a sequence than on all of it"),
        ("no-blocks", "has no list of repeated blocks"),
        ("no-matrix", "has no matrices that 2 processes could divide"),
        ("compile-tp", "compile= is not supported with tp"),
        ("compile-cp", "compile= is not supported with cp"),
    ],
)
def test_a_mesh_that_would_train_something_else_is_refused(case: str, words: str, pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert words in found["refused-meshes"][case]


def test_a_pipeline_takes_batches_of_any_size_and_evaluates_between_steps(pair: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = models.GPT(depth=2)
    optimizer = models.two_groups(model)
    losses = []
    for rows in (8, 7, 2, 1, 7):
        x, y = next(models.batches(1, rows=rows))
        loss = models.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses += [loss.item(), models.cross_entropy(model(x), y).item()]
    for found in pair:
        assert found["odd-batches"]["losses"] == pytest.approx(losses, abs=2e-5)


def test_a_pipeline_runs_under_autocast_with_dropout(pair: list[dict[str, Any]]) -> None:
    losses = pair[0]["mixed-precision"]["losses"]
    assert losses == pair[1]["mixed-precision"]["losses"]
    assert losses[-1] < losses[0]


def test_a_gradient_that_overflows_on_one_stage_is_left_out_by_all(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert found["overflow"] == {"scales": [8.0, 4.0, 4.0], "moved": [False, True], "drifted": []}


def test_a_pipeline_trains_when_its_first_stage_is_frozen(pair: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = models.GPT()
    for name, param in model.named_parameters():
        param.requires_grad_("blocks.3" in name or "norm" in name)
    losses = models.train(model, models.two_groups(model), 5)
    assert pair[0]["frozen"]["losses"] == pytest.approx(losses, abs=2e-5)


def test_a_copy_of_a_pipelined_model_keeps_its_weights(pair: list[dict[str, Any]]) -> None:
    found = pair[0]["averaged-copy"]
    assert found["before"] == found["after"] == pytest.approx(found["first"], abs=1e-6)


def test_training_the_bare_model_is_noticed_once(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert found["bare-model"] == {"quiet": [], "warned": ["bare_model"]}


def test_reading_the_same_data_on_every_rank_is_noticed(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert found["same-data"] == {"same": ["same_data"], "different": []}


def test_a_process_group_is_closed_only_by_who_made_it(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert found["rendezvous"] == {"heard": ["0", "1"], "closed": True, "kept": True}


@pytest.mark.parametrize(
    ("scenario", "words"),
    [("side-by-side", "do not feed one another"), ("different-inputs", "called with different inputs")],
)
def test_what_a_pipeline_cannot_do_ends_every_stage_with_a_reason(scenario: str, words: str, tmp_path: Path) -> None:
    processes = run(tmp_path, 2, [scenario])
    assert [process.returncode for process in processes] == [1, 1]
    assert words in (tmp_path / "log.1").read_text()
