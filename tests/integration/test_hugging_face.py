"""The simple distributed example of the FlexAI guide, command by command: push, run on two nodes, watch, fetch, resume."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.testing.patience import wait_until

pytestmark = pytest.mark.torch
SCRIPT = "code/causal-language-modeling/train.py"
TINY = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2,
    "n_positions": 32, "vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
ARGUMENTS = [
    "--do_eval", "--do_train", "--dataset_name", "wikitext",
    "--tokenized_dataset_load_dir", "/input/gpt2-tokenized-wikitext",
    "--model_name_or_path", "openai-community/gpt2", "--output_dir", "/output-checkpoint",
    "--per_device_train_batch_size", "8", "--per_device_eval_batch_size", "8",
    "--logging_steps", "5", "--save_steps", "20", "--eval_steps", "20", "--eval_strategy", "steps",
    "--report_to", "none", "--use_cpu", "true",
]  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A git repository with the script, and a tiny model under the hub's name, since there is no hub here."""
    root = tmp_path_factory.mktemp("repository")
    script = root / SCRIPT
    script.parent.mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "data" / "hf_train.py", script)
    config = root / "openai-community" / "gpt2" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(TINY))
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def dataset(server, tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("data") / "gpt2-tokenized-wikitext"
    ids = [[(i * 7 + j) % 64 for j in range(16)] for i in range(800)]
    rows = datasets.Dataset.from_dict({"input_ids": ids, "labels": ids})
    datasets.DatasetDict({"train": rows, "validation": rows.select(range(16))}).save_to_disk(folder)
    server.cli("dataset", "push", "gpt2-tokenized-wikitext", "--file", str(folder))
    return folder


def run(server, name, repository, *args, flags=()):
    return server.cli(
        "training", "run", name, "--repository-url", str(repository), "--dataset", "gpt2-tokenized-wikitext",
        "--nodes", "2", "--accels", "1", *flags, "--", SCRIPT, *ARGUMENTS, *args,
    )  # fmt: skip


def test_checkpoints_appear_while_it_runs_one_is_fetched_and_a_resumed_job_continues(
    server, repository, dataset, tmp_path
):
    every, seen = ["--save_steps", "100", "--eval_steps", "100"], tmp_path / "seen"
    run(server, "simple-ddp", repository, "--max_steps", "300", *every, flags=["--env", f"HOLD_UNTIL={seen}"])
    seen_while_running = []
    with server.client() as client:

        def has_ended():
            if not client.jobs.get("simple-ddp").status.is_terminal:
                seen_while_running.extend(client.checkpoints.list("simple-ddp"))
                if seen_while_running:
                    seen.touch()
                return False
            return True

        wait_until(has_ended, "the job ends", limit_s=150, every_s=0.5)
        status = client.jobs.get("simple-ddp").status
    assert status == "succeeded", server.cli("training", "logs", "simple-ddp").stdout[-3000:]
    assert seen_while_running

    found = [c for c in server.json("training", "checkpoints", "simple-ddp") if c["node"] == 0 and c["name"] != "."]
    assert [c["step"] for c in found] == [100, 200, 300]
    assert {c["model"] for c in found} == {"GPT2LMHeadModel"}
    assert all(c["train_loss"] > 0 and c["eval_loss"] > 0 and c["inference_ready"] for c in found)

    chosen = found[1]
    server.cli("checkpoint", "fetch", chosen["id"], "--destination", str(tmp_path / "checkpoint"))
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert model.config.n_embd == 16

    resumed = run(
        server, "continued", repository, "--max_steps", "300", *every, "--resume", "/input-checkpoint",
        flags=["--checkpoint", chosen["id"], "--follow"],
    )  # fmt: skip
    assert "DONE global_step=300" in resumed.stdout
    later = [c["step"] for c in server.json("training", "checkpoints", "continued") if c["node"] == 0 and c["step"]]
    assert later
    assert min(later) > 200
    assert not re.search(r"\b20/50\b", resumed.stdout)
