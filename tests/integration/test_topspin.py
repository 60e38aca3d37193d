"""TopSpin's scripts as people run them: real starters, real workers, all three modes, kills and stops."""

import json
import os
import pickle
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from topspin_scripts import AUTO, DIST, MANY, OTHER_PARAM, OTHER_TRAIN, PARAM, TRAIN

from shoal.compat.topspin.figures import usual_ending
from shoal.testing.forks import Fork
from shoal.testing.patience import patient
from shoal.testing.processes import command

EXAMPLE = Path(__file__).parents[2] / "examples" / "topspin"
SCRIPTS = "example/nlp/intent_dection"

LONG = {"batches": 10**6, "train_sample_num": 2, "eval_gap_sample_num": 2, "epoch_num": 10**6, "gpu_num": 1}
"""One worker, a checkpoint at every second step, and no end."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "./")
    folder = tmp_path / "project"
    folder.mkdir()
    yield folder
    left = [p for p in psutil.process_iter() if str(folder) in _cwd(p)]
    for process in left:
        process.kill()
    assert not left, left


@pytest.fixture
def small(here):
    for name, text in (("param.py", PARAM), ("train.py", TRAIN), ("auto.py", AUTO), ("dist.py", DIST)):
        (here / name).write_text(text)
    return here


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The printed example with its features made, to be copied."""
    folder = tmp_path_factory.mktemp("printed") / "example"
    shutil.copytree(EXAMPLE, folder)
    param = folder / SCRIPTS / "param.py"
    # How much it learns from so few samples depends on the luck of the draw.
    param.write_text(param.read_text().replace("self.gpu_num = 2 ", "self.seed = 3\n    self.gpu_num = 2 ", 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", "./")
        run(folder, f"{SCRIPTS}/make_features.py")
    return folder


@pytest.fixture
def printed(here, example):
    return Path(shutil.copytree(example, here, dirs_exist_ok=True))


def _cwd(process):
    try:
        return process.cwd() if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


def start(here, *args, **given):
    env = {**os.environ, "GIVEN": json.dumps(given)}
    return Fork([sys.executable, *args], cwd=here, env=env, stdout=-1, stderr=-2)


def run(here, *args, code=0, **given):
    process = start(here, *args, **given)
    told, _ = process.communicate(timeout=patient(240))
    assert process.returncode == code, f"{process.returncode}\n{told}\n{logs(here)}"
    return told


def logs(here):
    return "\n".join(f"--- {p}\n{p.read_text()[-3000:]}" for p in sorted(here.glob("work/**/log/log.*")))


def runs(here):
    return sorted((here / "work").glob("**/meta"), key=lambda p: (p.stat().st_ctime, str(p)))


def result(meta):
    return json.loads((meta / "result.json").read_text())


def weight(meta):
    folder = meta.parent / "model"
    return torch.load(folder / (folder / "checkpoint").read_text().split()[-1])["model"]["w"].item()


def wait_for(condition, process, timeout_s=240):
    deadline = time.monotonic() + patient(timeout_s)
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_printed_example_in_debug_mode_is_killed_stopped_restored_and_draws_its_figures(printed):
    process = start(printed, f"{SCRIPTS}/train.py")
    wait_for(lambda: list(printed.glob("work/*/checkpoints/step-000000007/shoal.json")), process)
    process.kill()
    process.communicate()
    (meta,) = runs(printed)
    root = meta.parent
    assert root.name.startswith("run.nlp_example.intent_dection.") and result(meta)["status"] == "running"
    param = printed / SCRIPTS / "param.py"
    tag = '"nlp_example.intent_dection"'
    param.write_text(param.read_text().replace(tag, f"{tag}, restore_training_from_path_work='{root}'"))
    log = root / "log/log.rank_0"
    before = len(log.read_text())
    process = start(printed, f"{SCRIPTS}/train.py")
    wait_for(lambda: "batch_id: " in log.read_text()[before:], process)
    # Stopped meanwhile: it would be done before another Python has even started.
    process.send_signal(signal.SIGSTOP)
    run(printed, "-m", "palframe.pytorch.estimator4.stopper", str(root))
    process.send_signal(signal.SIGCONT)
    told, _ = process.communicate(timeout=patient(240))
    assert process.returncode == 0 and "Training is stopped; it can be restored." in told
    assert (meta / "TRAIN.STOPPED").exists() and result(meta)["seen"] < 500
    told = run(printed, f"{SCRIPTS}/train.py")
    assert "Training is Done." in told and (meta / "TRAIN.DONE").exists() and not (meta / "TRAIN.STOPPED").exists()
    assert {"seen": 500, "status": "finished"}.items() <= result(meta).items()
    assert result(meta)["best"] < -0.5, "it has learnt what the made-up words mean"
    assert len(pickle.loads((meta / "dev.eval.pkl").read_bytes())) == 5
    assert [log.read_text().count(f"batch_id: {n},") for n in (0, 34)] == [1, 1], "it went on where it was"
    magic = b"\x89PNG" if usual_ending() == ".png" else b"<svg"
    assert (root / f"{root.name}.train.loss{usual_ending()}").read_bytes().startswith(magic)
    assert (root / f"{root.name}.train.loss.smoothed_256{usual_ending()}").exists()
    assert (root / "param.py").read_text() == param.read_text()
    drawn = run(printed, "-m", "topspin.tools.draw_figure", "--path_work", str(root), "--out_file", "loss.png")
    assert "loss" in drawn and (printed / f"loss{usual_ending()}").exists()


def test_the_printed_example_runs_in_auto_mode(printed):
    told = run(printed, f"{SCRIPTS}/train_starter.py")
    (meta,) = runs(printed)
    assert meta.parent.parent.name.startswith("batch_task.run_id_")
    assert result(meta)["status"] == "finished" and result(meta)["seen"] == 500
    assert f"best vali_error: {result(meta)['best']:.6g}" in told and "1 finished" in told
    assert (meta.parent / "log/log.rank_1").exists() and (meta.parent / "log/log.node_0").exists()


def test_the_printed_example_runs_in_distributed_mode(printed):
    param = printed / SCRIPTS / "param.py"
    param.write_text(param.read_text().replace("self.gpu_num = 2 ", "self.gpu_num = 1 ", 1))  # two: in auto mode
    told = run(printed, f"{SCRIPTS}/train_dist_starter.py")
    (meta,) = runs(printed)
    assert "succeeds, best vali_error: " in told
    assert result(meta)["status"] == "finished" and result(meta)["best"] < 0


def test_a_search_has_the_numbers_of_the_original_and_reports_real_scores(small):
    """True gradient, and mean of means. The variants come in order, one after the other where two do not fit."""
    (small / "vali").touch()
    given = {"true_gradient": {"range": [True, False]}, "iter_num_update_optimizer": 2, "vali_file": "vali", "sign": -1}
    told = run(small, "auto.py", **given)
    first, second = sorted(runs(small))
    assert first.parent.name.endswith(".automl_0") and second.parent.name.endswith(".automl_1")
    assert [weight(first), weight(second)] == [-11.625, -8.25]
    root = first.parent.parent
    assert "w0rk.work.small" in first.parent.name and root.name.endswith(".mine")
    rows = json.loads((root / "results.json").read_text())
    assert [(row["status"], row["vali_error"]) for row in rows] == [("finished", 11.625), ("finished", 8.25)]
    assert f"1. best vali_error: 8.25 '{rows[1]['path_work']}'" in told, "the best is the smallest, of whatever sign"
    assert "2 finished" in told and "remaining 1 tasks" in told


def test_different_models_share_a_pool_each_on_slots_of_its_own(small):
    for name, text in (("other_param.py", OTHER_PARAM), ("other_train.py", OTHER_TRAIN), ("many.py", MANY)):
        (small / name).write_text(text)
    told = run(small, "many.py")
    assert "['finished', 'finished', 'finished']" in told and "3 finished" in told
    starts = re.findall(r"Task\[(\d)\] '[^']*' starts on (.+?), slots \[(.*?)\]", told)
    assert [(number, slots) for number, _, slots in starts[:2]] == [("0", "0, 1"), ("1", "5")]
    assert starts[2][0] == "2" and starts[2][2] in ("0", "5"), "it waited for a slot"
    lefts = re.findall(r"remaining (\d) tasks, remaining time: ", told)
    assert sorted(lefts) == ["0", "1", "2"]
    (root,) = (small / "elsewhere").glob("batch_task*")
    rows = json.loads((root / "results.json").read_text())
    other, first, second = (weight(Path(small / row["path_work"]) / "meta") for row in rows)
    assert second == 2 * first and other not in (0, first, second), "each with its own parameters and model"


def test_a_run_over_two_servers_that_is_killed_fails_and_is_restored_exactly(small):
    (small / "servers.txt").write_text("127.0.0.1\nlocalhost\n")
    given = {"batches": 20, "epoch_num": 6, "lr": 0.01, "gpu_num": 1, "servers_file": "servers.txt"}
    process = start(small, "dist.py", **given, slow="go")
    wait_for(lambda: list(small.glob("work/*/checkpoints/step-000000006/shoal.json")), process)
    (meta,) = runs(small)
    victims = [p for p in psutil.process_iter() if _cwd(p) == str(small) and "train.py" in command(p).split()]
    assert len(victims) == 2
    assert {p.name for p in (meta.parent / "log").glob("log.node_*")} == {"log.node_0", "log.node_1"}
    victims[1].kill()
    told, _ = process.communicate(timeout=patient(240))
    assert process.returncode == 1 and "fails: killed by SIGKILL" in told
    run(small, "dist.py", **given, restore=str(meta.parent))
    assert result(meta)["status"] == "finished"
    assert weight(meta) == pytest.approx(-0.01 * 16.5 * sum(range(1, 7)), rel=1e-6), "every batch has counted once"
    assert (meta.parent / "log/log.rank_0").read_text().count("batch_id: 0,") == 1, "it has not begun again"


def test_the_stopper_stops_a_run_which_saves_and_says_so(small):
    process = start(small, "dist.py", **LONG, slow="go")
    wait_for(lambda: list(small.glob("work/*/checkpoints/step-000000006/shoal.json")), process)
    (meta,) = runs(small)
    stopped = run(small, "-m", "palframe.pytorch.estimator4.stopper", str(meta.parent))
    assert "saves and stops" in stopped
    (small / "go").touch()
    told, _ = process.communicate(timeout=patient(240))
    assert process.returncode == 143 and "is stopped" in told, told
    assert (meta / "TRAIN.STOPPED").exists() and result(meta)["status"] == "stopped"
    folder = meta.parent / "model"
    assert f"model_{result(meta)['seen']:015}.pt" == (folder / "checkpoint").read_text().split()[-1]


def test_a_batch_is_stopped_with_all_its_runs_and_goes_on_where_it_was(small):
    given = LONG | {"slots": 1, "lr": {"range": [1e-9, 2e-9]}}
    process = start(small, "auto.py", **given, slow="go")
    wait_for(lambda: list(small.glob("work/*/*/checkpoints/step-000000006/shoal.json")), process)
    (root,) = (small / "work").glob("batch_task*")
    run(small, "-m", "topspin.estimator.stopper", "--path_work", str(root))
    while "Stopping: 1 running tasks save, 1 are not started." not in (line := process.stdout.readline()):
        assert line, "the starter has ended"
    (small / "go").touch()
    told, _ = process.communicate(timeout=patient(240))
    assert process.returncode == 143 and "2 stopped" in told, told
    (meta,) = runs(small)
    assert result(meta)["status"] == "stopped"
    given |= {"restore": str(root.relative_to(small)), "epoch_num": result(meta)["seen"] // 2 + 3}
    assert "2 finished" in run(small, "auto.py", **given) and len(runs(small)) == 2
    assert (meta.parent / "log/log.rank_0").read_text().count("batch_id: 0,") == 1, "it has not begun again"
    assert "is done already" in run(small, "auto.py", **given)


def test_a_worker_that_fails_ends_the_run_with_its_reason(small):
    told = run(small, "dist.py", code=1, batches=9, epoch_num=6, fail="no such word")
    (meta,) = runs(small)
    assert "fails: ValueError: no such word" in told
    assert result(meta)["error"] == "ValueError: no such word" and (meta / "TRAIN.FAILED").exists()
    assert list((meta.parent / "bug").glob("batch.*.rank_1.pkl"))


def test_what_cannot_run_is_refused_before_anything_starts(small):
    told = run(small, "dist.py", code=1, use_gpu=True, train_files="none.pkl")
    assert "E2: there is no GPU" in told and "E3: no data at none.pkl" in told
    assert not (small / "work").exists()


def test_the_command_palframe_begins_a_project_and_trains_it(here):
    assert "Next: PYTHONPATH=./ python mine/train.py" in run(here, "-m", "palframe", "init", "mine")
    given = [
        "--project_dir",
        "mine",
        "--gpu_num",
        "1",
        "--epoch_num",
        "1",
        "--batch_size",
        "32",
        "--extra_run_tag",
        "x",
    ]
    run(here, "-m", "palframe", "start_dist_train", *given)
    (meta,) = runs(here)
    assert meta.parent.name.endswith(".x")
    assert {"status": "finished", "seen": 256, "steps": 8}.items() <= result(meta).items()
    assert "is not running" in run(here, "-m", "palframe", "stop_dist_train", "--path_work", str(meta.parent), code=3)
