"""Scripts that look for their last checkpoint where they wrote it: in their output folder, or in their working directory."""

# As many public scripts do it. The first attempt saves, waits until the agent has kept both, and is killed.
SCRIPT = """
import argparse, os, signal, sys, time
from pathlib import Path
parser = argparse.ArgumentParser(); parser.add_argument("--model_folder")
folder = Path(parser.parse_args().model_folder)
snapshot, latest = Path("snapshot.pt"), folder / "latest"
of_output = (folder / latest.read_text() / "model.pt").read_text() if latest.exists() else "nothing"
print("output:", of_output, "workdir:", snapshot.read_text() if snapshot.exists() else "nothing", flush=True)
attempt, kept = int(os.environ["SHOAL_ATTEMPT"]), Path(os.environ["SHOAL_SPOOL"], "kept")
if attempt == 1:
    snapshot.write_text("epoch 3")
    (folder / "step-3").mkdir()
    (folder / "step-3" / "model.pt").write_text("weights 3")
    latest.write_text("step-3")
    while not kept.exists() or not {"workdir", "step-3", "."} <= set(kept.read_text().split()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3 if attempt == 2 else 0)
"""


def test_a_killed_or_resumed_job_finds_its_checkpoints_where_it_wrote_them(server, code):
    folder = code({"train.py": SCRIPT})
    entry = ("--", "train.py", "--model_folder", "/output-checkpoint")
    server.cli("training", "run", "own", "--dir", str(folder), *entry)
    failed = server.wait_for("own", lambda j: j.status == "failed")
    assert failed.attempts == 2
    server.cli("training", "resume", "own", "-f")
    said = [line["text"] for line in server.logs("own", "--rank", "0") if line["text"].startswith("output:")]
    assert said == ["output: nothing workdir: nothing"] + 2 * ["output: weights 3 workdir: epoch 3"]
    kept = server.json("training", "checkpoints", "own")
    assert sorted((c["name"], c["attempt"]) for c in kept) == [(".", 1), ("step-3", 1), ("workdir", 1)], "none twice"
    events = [e["message"] for e in server.inspect("own")["events"] if e["attempt"] == 3]
    assert not any("starts from" in message for message in events)
    (put_back,) = (message for message in events if "was restored to" in message)
    for place in ("/output-checkpoint/step-3", "/output-checkpoint", "the working directory"):
        assert place in put_back
    assert server.inspect("own")["warnings"] == [], "it read the copies it was given back"


FORGETFUL = """
import os, signal, time
from pathlib import Path
kept = Path(os.environ["SHOAL_SPOOL"], "kept")
if os.environ["SHOAL_ATTEMPT"] == "1":
    folder = Path(os.environ["FLEXAI_OUTPUT_CHECKPOINT_DIR"], "step-3")
    folder.mkdir()
    (folder / "model.pt").write_text("weights 3")
    while not kept.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
print("epoch 0")
"""


def test_a_script_that_begins_again_is_warned_in_its_log_and_on_its_page(server, code):
    server.cli("training", "run", "again", "--dir", str(code({"train.py": FORGETFUL})), "--", "train.py")
    done = server.wait_for("again", lambda j: j.status == "succeeded")
    (warning,) = done.warnings
    assert "is at /input-checkpoint, but the script ended without reading it" in warning
    assert f"[shoal] warning: {warning}" in [line["text"] for line in server.logs("again")]
    assert "Warning" in server.cli("training", "inspect", "again").stdout
    assert [e["message"] for e in server.inspect("again")["events"] if e["kind"] == "warning"] == [warning]
