"""Detection of complete checkpoints and their facts, without loading any of them."""

import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from shoal.agent.data.completeness import facts, is_half_made_name, problem


def safetensors(path, *, cut=0):
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"\0" * 16
    path.write_bytes(data[: len(data) - cut])


def torch_file(path, *, cut=0):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 100)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut])


@pytest.fixture
def look(tmp_path):
    return lambda: problem(tmp_path, sorted(p.name for p in tmp_path.iterdir()))


def test_whole_files_raise_no_objection(tmp_path, look):
    safetensors(tmp_path / "model.safetensors")
    torch_file(tmp_path / "other.pt")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "legacy.bin").write_bytes(b"\x80\x02 an old pickle")
    assert look() is None


@pytest.mark.parametrize("cut", [1, 16, 60])
def test_a_safetensors_file_that_ends_too_early_is_noticed(tmp_path, look, cut):
    safetensors(tmp_path / "model.safetensors", cut=cut)
    assert "model.safetensors" in look()


def test_a_torch_file_without_its_end_is_noticed(tmp_path, look):
    torch_file(tmp_path / "model.pt", cut=30)
    assert look() == "model.pt is cut short"


def test_json_that_is_still_being_written_is_noticed(tmp_path, look):
    (tmp_path / "trainer_state.json").write_text('{"log_history": [')
    assert "not valid JSON" in look()


def test_a_missing_shard_is_named(tmp_path, look):
    safetensors(tmp_path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors" in look()


def test_a_hugging_face_checkpoint_needs_its_trainer_state_which_comes_last(tmp_path, look):
    safetensors(tmp_path / "model.safetensors")
    torch_file(tmp_path / "optimizer.pt")
    assert "trainer_state.json" in look()
    (tmp_path / "trainer_state.json").write_text("{}")
    assert look() is None


def test_a_distributed_checkpoint_needs_its_metadata_which_comes_last(tmp_path):
    (tmp_path / "__0_0.distcp").write_bytes(b"x")
    assert ".metadata" in problem(tmp_path, ["__0_0.distcp"])
    assert problem(tmp_path, [".metadata", "__0_0.distcp"]) is None


class Runs:
    """Would be heard of if it were ever unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit",)


def test_shards_on_several_nodes_are_known_to_belong_together(tmp_path):
    named = {"a": "__0_0.distcp", "b": "__1_0.distcp", "c": Runs()}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".metadata").write_bytes(pickle.dumps(named))
    (tmp_path / "model" / "__0_0.distcp").write_bytes(b"x")
    first, other = ["model/.metadata", "model/__0_0.distcp"], ["model/__1_0.distcp"]
    assert problem(tmp_path, first) is None
    assert problem(tmp_path, other, on_first_node=False) is None and problem(tmp_path, other) is not None
    found = facts("step-5", tmp_path, first), facts("step-5", tmp_path, other)
    assert [(f["is_part"], f["lacks"]) for f in found] == [(False, other), (True, [])]
    assert facts("step-5", tmp_path, [*first, *other])["lacks"] == []


def test_settings_and_vocabularies_are_told_from_weights(tmp_path):
    assert facts(".", tmp_path, ["args.json", "Vocab.TXT"])["only_text"]
    assert not facts(".", tmp_path, ["args.json", "model.anything"])["only_text"]


@pytest.mark.parametrize("name", ["tmp-checkpoint-5", "model.pt.tmp", ".hidden", "x.partial", "a~", "checkpoint_temp"])
def test_names_of_unfinished_things_are_known(name):
    assert is_half_made_name(name)


@pytest.mark.parametrize("name", ["checkpoint-500", "template", "parts_of_speech", "temperature.pt", "latest"])
def test_ordinary_names_are_not_taken_for_unfinished(name):
    assert not is_half_made_name(name)


def test_step_and_losses_come_from_the_trainers_own_log(tmp_path):
    history = [{"loss": 2.5, "step": 10}, {"loss": 2.0, "step": 20}, {"eval_loss": 1.9, "eval_runtime": 3, "step": 20}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 20, "log_history": history}))
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["GPT2LMHeadModel"], "transformers_version": "5.1"})
    )
    found = facts("checkpoint-20", tmp_path, ["config.json", "trainer_state.json"])
    assert (found["step"], found["train_loss"], found["eval_loss"]) == (20, 2.0, 1.9)
    assert (found["model"], found["version"], found["inference_ready"]) == ("GPT2LMHeadModel", "5.1", True)
    assert found["metrics"] == {"eval_loss": 1.9, "eval_runtime": 3.0, "loss": 2.0}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step-000000999", 999),
        ("global_step1000", 1000),
        ("iter_0000500", 500),
        ("ckpt_500.pt", 500),
        ("model_step_20.pt", 20),
        ("epoch=3-step=500-v1.ckpt", 500),
        ("epoch_3.pt", None),
        ("epoch-12", None),
        ("resnet50", None),
        ("gpt2", None),
        ("llama-7b", None),
        ("run-2024-05-12", None),
        ("checkpoint-epoch3", None),
        ("checkpoint3.pt", None),
        ("model_v2", None),
        ("footstep7", None),
        ("step-" + "9" * 20, None),
    ],
)
def test_a_step_is_read_only_from_names_that_mean_it(tmp_path, name, step):
    assert facts(name, tmp_path, [])["step"] == step


def test_without_such_files_the_step_comes_from_the_name(tmp_path):
    assert facts("epoch=3-step=500.ckpt", tmp_path, [])["step"] == 500
    assert facts("latest", tmp_path, [])["step"] is None


@pytest.mark.parametrize(
    ("files", "only_logs"),
    [
        (["offline-run-20261116_141500-ab12cd34/run-ab12cd34.wandb", "debug-internal.log"], True),
        (["run-20261116_141500-ab12cd34/files/config.yaml"], True),
        (["events.out.tfevents.1700000000.host.1.0", "train/events.out.tfevents.1700000000.host.1.1"], True),
        (["offline-run-20261116_141500-ab12cd34/run-ab12cd34.wandb", "model.pt"], False),
        (["runs.json"], False),
        ([], False),
    ],
)
def test_what_trackers_write_is_told_from_what_a_job_can_go_on_from(tmp_path, files, only_logs):
    assert facts("wandb", tmp_path, files)["only_logs"] is only_logs


def own(root: Path, **changes: object) -> list[str]:
    """A checkpoint as the SDK leaves it."""
    (root / "model.pt").write_bytes(b"x" * 10)
    about = {"step": 100, "metrics": {"loss": 0.5, "Eval loss": 0.7, "bad": "nan", "flag": True},
             "files": {"model.pt": {"size": 10}}} | changes  # fmt: skip
    (root / "shoal.json").write_text(json.dumps(about))
    return ["model.pt", "shoal.json"]


def test_the_sdks_own_list_decides_what_is_complete(tmp_path: Path) -> None:
    files = own(tmp_path)
    assert problem(tmp_path, files) is None
    (tmp_path / "optimizer.pt").write_bytes(b"PK\x03\x04 cut short")
    assert problem(tmp_path, [*files, "optimizer.pt"]) is None
    assert "does not exist" in str(problem(tmp_path, own(tmp_path, files={"optimizer.bin": {"size": 1}})))
    assert "10 bytes" in str(problem(tmp_path, own(tmp_path, files={"model.pt": {"size": 11}})))
    (tmp_path / "shoal.json").write_text('{"step": 100, "files"')
    assert "not valid" in str(problem(tmp_path, files))


def test_the_sdks_own_file_tells_step_and_losses(tmp_path: Path) -> None:
    found = facts("step-000000999", tmp_path, own(tmp_path))
    assert (found["step"], found["train_loss"], found["eval_loss"]) == (100, 0.5, 0.7)
    assert found["metrics"] == {"Eval loss": 0.7, "loss": 0.5}
    found = facts("step-000000999", tmp_path, own(tmp_path, step=None, metrics={"train/loss": 1, "eval/loss": 2}))
    assert (found["step"], found["train_loss"], found["eval_loss"]) == (999, 1.0, 2.0)


def test_lightnings_own_folder_tells_its_step_and_without_checkpoints_is_no_state(tmp_path):
    logs = ["version_0/hparams.yaml", "version_0/metrics.csv", "version_0/events.out.tfevents.1.host"]
    saved = [f"version_0/checkpoints/epoch={n}-step={20 * n}.ckpt" for n in (2, 1)]
    found = facts("lightning_logs", tmp_path, [*logs, *saved])
    assert found["step"] == 40 and not found["only_text"] and not found["only_logs"]
    found = facts("lightning_logs", tmp_path, logs)
    assert found["step"] is None and found["only_logs"]
    assert facts("lightning_logs", tmp_path, [*logs, "notes.txt"])["only_text"]
