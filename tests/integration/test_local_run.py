"""`shoal run` as a person uses it: real processes, signals and files; no server."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

from shoal.testing import forks
from shoal.testing.forks import CLI, Fork
from shoal.testing.patience import patient
from shoal.testing.processes import environment

SHOAL = [sys.executable, "-m", "shoal.cli"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to run in; whatever a run leaves behind in processes fails the test."""
    for name in [n for n in os.environ if n.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHOAL_NO_AUTOSTART", "1")
    folder = tmp_path / "project"
    folder.mkdir()
    yield folder
    left = [p for p in psutil.process_iter() if str(folder) in environment(p).get("SHOAL_SPOOL", "")]
    assert not left, left


def start(here, *args, **options):
    return Fork([*SHOAL, "run", *args], modules=CLI, cwd=here, stdout=-1, stderr=-1, **options)


def run(here, *args, code=0, env=None):
    done = forks.run(
        [*SHOAL, "run", *args],
        modules=CLI,
        cwd=here,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=patient(120),
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def only_run(here):
    (found,) = (here / "shoal-runs").iterdir()
    return found


def wait_for(path: Path, text="", timeout_s=60.0):
    deadline = time.monotonic() + patient(timeout_s)
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"{text or path} never came"
        time.sleep(0.01)


def test_a_script_runs_in_place_with_the_environment_of_a_job(here):
    (here / "train.py").write_text(
        "import json, os, sys, helper\n"
        "print(json.dumps({'argv': sys.argv[1:], 'cwd': os.getcwd(), 'env': dict(os.environ)}))\n"
    )
    (here / "helper.py").write_text("")
    done = run(here, "train.py", "--env", "A=b=c", "--", "--lr", "3e-4", "--resume")
    seen = json.loads(done.stdout)
    root = only_run(here)
    assert seen["argv"] == ["--lr", "3e-4", "--resume"] and seen["cwd"] == str(here)
    wanted = {
        "SHOAL_RANK": "0",
        "A": "b=c",
        "SHOAL_ATTEMPT": "1",
        "SHOAL_JOB_NAME": "train",
        "SHOAL_SPOOL": str(root / "spool"),
        "OUTPUT_DIR": str(root / "checkpoints"),
        "FLEXAI_OUTPUT_CHECKPOINT_DIR": str(root / "checkpoints"),
        "PLATFORM": "pytorch",
    }
    assert wanted.items() <= seen["env"].items()
    assert not {"SHOAL_URL", "SHOAL_RESUME_FROM", "USE_DDP", "SHOAL_EMULATE_CUDA"} & seen["env"].keys()
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} & seen["env"].keys(), "one worker is a plain process"
    facts = json.loads((root / "run.json").read_text())
    assert facts["name"] == "train" and facts["argv"] == ["train.py", "--lr", "3e-4", "--resume"]
    assert facts["world_size"] == 1 and facts["attempts"][0]["exit_code"] == 0
    assert (root / "logs/rank-0.log").read_text() == done.stdout
    assert f"shoal sync shoal-runs/{root.name}" in done.stderr
    assert not (root / "tmp").exists()


def test_several_workers_say_who_they_are(here):
    (here / "train.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['USE_DDP'])\n"
    )
    done = run(here, "--nproc", "2", "train.py")
    assert sorted(done.stdout.splitlines()) == ["[rank0] rank 0 of 2 1", "[rank1] rank 1 of 2 1"]
    assert (only_run(here) / "logs/rank-1.log").read_text() == "rank 1 of 2 1\n"


def test_the_first_failure_gives_exit_code_and_reason_and_ends_the_others(here):
    (here / "train.py").write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    try: 1 / 0\n"
        "    except ZeroDivisionError:\n"
        "        sys.excepthook(*sys.exc_info())\n"
        "        sys.exit(7)\n"
        "time.sleep(600)\n"
    )
    done = run(here, "-n", "2", "train.py", code=7)
    assert "error: Rank 1 failed: ZeroDivisionError: division by zero" in done.stderr
    assert json.loads((only_run(here) / "run.json").read_text())["attempts"][0]["exit_code"] == 7


def test_a_killed_worker_is_named_by_its_signal(here):
    (here / "train.py").write_text("import os; os.kill(os.getpid(), 9)")
    assert "killed by SIGKILL" in run(here, "train.py", code=137).stderr


def test_what_cannot_be_imported_is_told_with_the_way_to_install_it(here):
    (here / "train.py").write_text("import no_such_library")
    (here / "requirements.txt").write_text("no_such_library\n")
    done = run(here, "train.py", code=1)
    assert "No module named 'no_such_library'" in done.stderr
    assert "pip install -r requirements.txt" in done.stderr and "installs nothing" in done.stderr


SAVER = """
import os, pathlib, signal, subprocess, sys, time
def save(*_):
    time.sleep(0.2)
    pathlib.Path(os.environ["OUTPUT_DIR"], "saved").write_text("x")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
subprocess.Popen(["sleep", "600"])
pathlib.Path("ready").touch()
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_ctrl_c_lets_it_save(here, signum, code):
    (here / "train.py").write_text(SAVER)
    process = start(here, "train.py")
    wait_for(here / "ready")
    process.send_signal(signum)
    _, err = process.communicate(timeout=patient(20))
    assert process.returncode == code, err
    assert (only_run(here) / "checkpoints/saved").exists()
    assert "Ctrl-C again" in err and "stopped after" in err


def test_the_second_ctrl_c_ends_it_at_once(here):
    (here / "train.py").write_text(
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: pathlib.Path('told').touch())\n"
        "pathlib.Path('ready').touch()\n"
        "while True: time.sleep(0.05)\n"
    )
    process = start(here, "train.py")
    wait_for(here / "ready")
    process.send_signal(signal.SIGINT)
    wait_for(here / "told")
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=patient(20))
    assert process.returncode == 130 and time.monotonic() - started < patient(5)


def test_nothing_is_left_when_the_command_itself_is_killed(here):
    (here / "train.py").write_text(SAVER.replace("save)", "signal.SIG_IGN)"))
    process = start(here, "train.py")
    wait_for(here / "ready")
    process.kill()
    process.communicate(timeout=patient(20))
    gone, alive = psutil.wait_procs(
        [p for p in psutil.process_iter() if str(here) in environment(p).get("SHOAL_SPOOL", "")], timeout=patient(10)
    )
    assert not alive, (gone, alive)


@pytest.mark.parametrize("sandbox", ["auto", "rewrite"])
def test_data_is_where_a_job_would_find_it(here, sandbox):
    (here / "set").mkdir()
    (here / "set/a.txt").write_text("content")
    (here / "train.py").write_text(
        "import argparse, os, pathlib\n"
        "p = argparse.ArgumentParser(); p.add_argument('--data'); p.add_argument('--out')\n"
        "a = p.parse_args()\n"
        "print(pathlib.Path(a.data, 'a.txt').read_text(), pathlib.Path(os.environ['DATA_LOCATION'], 'a.txt').read_text())\n"
        "pathlib.Path(a.out, 'model').write_text('m')\n"
    )
    env = {"SHOAL_SANDBOX": sandbox}
    done = run(here, "--data", "wiki=set", "train.py", "--", "--out", "/output-checkpoint", env=env)
    assert done.stdout == "content content\n"
    assert (only_run(here) / "checkpoints/model").read_text() == "m"
    assert not Path("/input/wiki").exists()


CHECKPOINTS = """
import json, os, pathlib, sys
out = pathlib.Path(os.environ["OUTPUT_DIR"])
resume = os.environ.get("SHOAL_RESUME_FROM")
step = json.loads(pathlib.Path(resume, "state.json").read_text())["step"] if resume else 0
print("from", step, "attempt", os.environ["SHOAL_ATTEMPT"], *sys.argv[1:])
for step in range(step + 1, step + 3):
    folder = out / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"step": step}))
(out / ".tmp-checkpoint-99").mkdir(exist_ok=True)
(out / f"checkpoint-{step + 50}").mkdir()
(out / f"checkpoint-{step + 50}" / "state.json").write_text('{"st')
sys.exit(3)
"""


def test_resume_goes_on_from_the_newest_complete_checkpoint(here):
    (here / "train.py").write_text(CHECKPOINTS)
    assert run(here, "train.py", "--", "--x", code=3).stdout == "from 0 attempt 1 --x\n"
    root = only_run(here)
    done = run(here, "--resume", code=3)
    assert done.stdout == "from 2 attempt 2 --x\n" and "from checkpoint-2." in done.stderr
    again = run(here, "--resume", str(root), code=3)
    assert again.stdout == "from 4 attempt 3 --x\n"
    assert only_run(here) == root
    assert [a["resumed_from"] for a in json.loads((root / "run.json").read_text())["attempts"]] == [
        None,
        "checkpoint-2",
        "checkpoint-4",
    ]


def test_on_a_terminal_the_script_sees_one_and_its_bar_passes_unchanged(here):
    (here / "train.py").write_text(
        "import os, sys\nsys.stdout.write(f'{sys.stdout.isatty()} {os.get_terminal_size(1).columns}\\rbar\\n')\n"
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 123, 0, 0))
    process = Fork([*SHOAL, "run", "train.py"], modules=CLI, cwd=here, stdout=theirs, stderr=subprocess.PIPE)
    process.communicate(timeout=patient(20))
    os.close(theirs)
    assert os.read(ours, 4096) == b"True 123\rbar\r\n"
    os.close(ours)
    assert (only_run(here) / "logs/rank-0.log").read_text() == "bar\n"


def test_with_json_the_result_is_the_only_thing_on_stdout(here):
    (here / "train.py").write_text("print('said'); raise SystemExit(4)")
    done = run(here, "train.py", "--json", code=4)
    result = json.loads(done.stdout)
    assert result["exit_code"] == 4 and result["rank"] == 0 and result["dir"] == str(only_run(here))
    assert "said" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "No script given"),
        (("nothing.py",), "There is no nothing.py"),
        (("--data", "x=missing", "train.py"), "is not a folder"),
        (("--nproc", "-1", "train.py"), "at least one worker"),
        (("--nproc", "0", "train.py"), "at least one worker"),
        (("trian.py",), "shoal run train.py"),
        (("--resume",), "There is no run in"),
        (("train.py", "--lr", "3"), "go after `--`"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(here, args, words):
    (here / "train.py").write_text("")
    done = run(here, *args, code=3 if args == ("--resume",) else 2)
    assert words in done.stderr and not (here / "shoal-runs").exists()


TRAINING = """
import shoal.testing.light_torch
import sys, torch, shoal
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
run = shoal.init(seed=0)
loader = torch.utils.data.DataLoader(torch.randn(64, 2), batch_size=4, shuffle=True)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
print("from", run.global_step, flush=True)
for x in run.loop(loader, max_steps=run.global_step + 3 if run.resumed else 10**9):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    run.step(loss=loss.item())
"""


def test_a_training_saves_at_ctrl_c_and_goes_on_from_there(here):
    pytest.importorskip("torch")
    (here / "train.py").write_text(TRAINING)
    process = start(here, "train.py", "--dir", "run")
    spool = here / "run/spool/rank-0.jsonl"
    wait_for(spool, '"k":"s"')
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=patient(60))
    assert process.returncode == 130, err
    (saved,) = (here / "run/checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    assert step > 0 and f"checkpoint   run/checkpoints/{saved.name}" in err
    assert "shoal run --resume --dir run" in err

    done = run(here, "--resume", "--dir", "run")
    assert f"from {step}\n" in done.stdout
    records = [json.loads(line) for line in spool.read_text().splitlines()]
    assert [r["n"] for r in records] == list(range(len(records)))
    assert [r["i"] for r in records if r["k"] == "s"] == list(range(1, step + 4))
    assert [r["status"] for r in records if r["k"] == "f"] == ["stopped", "finished"]


def test_script_arguments_name_and_env_come_from_the_project_file(here):
    (here / "show.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ['A'], os.environ['B'])\n")
    text = "name: shown\nrun: show.py\nargs: [--lr, 1]\naccels: 4\nenv: {A: 1, B: 2}\nprofiles: {x: {env: {A: 5}}}\n"
    (here / "shoal.yaml").write_text(text)
    done = run(here, "-E", "B=3", "--profile", "x", "--", "--y", "z")
    assert "['--lr', '1', '--y', 'z'] 5 3" in done.stdout, "one worker, however many slots a job would have"
    assert only_run(here).name.startswith("shown-")
    assert "['--lr', '1', '--y', 'z'] 1 2" in run(here, "--resume").stdout, "a run is resumed with its own arguments"
    assert "['a', '--b'] 1 2" in run(here, "show.py", "--", "a", "--b").stdout, "another script has its own arguments"
