"""The project file `shoal.yaml`: typed options come first, then the profile, then the file, then the defaults."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import wireviews as views
from clirun import Cli, Ran
from stubserver import Stub, reply
from test_cli_training import JOBS, accept, asked

from shoal.cli.shared.job_flags import CodeFlags, JobFlags
from shoal.cli.shared.project_file import read_project
from shoal.core.project_file import OPTION_OF, ProjectJob

FILE = """
name: gpt
run: train.py
args: {lr: 3e-4, version: 1.10, amp: true, debug: false, layers: [1, 02]}
nodes: 1:4
grow: true
gpu: H100:8
gpu_memory: 40G
after: [prep, "old:ended"]
datasets: [wiki, books]
env: {A: 1.10, B: "true"}
secrets: {KEY: wandb}
labels: {rack: 7}
time_limit: 8h
stall_timeout: never
budget: 5.00
memory: 16G
cpus: 0.5
priority: -5
exclude: [old]
keep_last: 2
keep_best: -acc
allow_cpu: true
batch: night
profiles:
  debug:
    device: cpu
    nodes: 1
    args: {lr: 1, steps: 5}
    env: {B: two, KEY: plain}
  eval:
    run: eval.py --fast
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "my project"
    made.mkdir()
    (made / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def spec_of(cli: Cli, folder: Path) -> Any:
    """The spec that a command would send, given the text of the file."""

    def read(text: str, *words: str) -> dict[str, Any]:
        Path("shoal.yaml").write_text(text)
        at = words.index("--") if "--" in words else len(words)
        ran = cli("training", "run", *words[:at], "--print-spec", *words[at:])
        assert ran.code == 0, ran.err
        found: dict[str, Any] = json.loads(ran.out)
        return found

    return read


def test_everything_may_stand_in_the_file(spec_of: Any) -> None:
    spec = spec_of(FILE)
    assert spec["name"] == "gpt"
    assert spec["entry"] == "train.py --lr 3e-4 --version 1.10 --amp --layers 1 02".split(), "numbers stay as typed"
    assert (spec["min_nodes"], spec["max_nodes"], spec["grow"]) == (1, 4, True)
    assert (spec["gpu"], spec["accels"], spec["gpu_memory_gb"], spec["labels"]) == ("H100", 8, 40, {"rack": "7"})
    assert (spec["datasets"], spec["env"]) == (["wiki", "books"], {"A": "1.10", "B": "true"})
    assert (spec["secrets"], spec["exclude"]) == ({"KEY": "wandb"}, ["old"])
    assert (spec["time_limit_s"], spec["stall_timeout_s"], spec["budget"]) == (28800, 0, "5.00")
    assert (spec["memory"], spec["cpus"], spec["priority"]) == ("16G", 0.5, -5)
    assert (spec["keep_last"], spec["keep_best"], spec["allow_cpu"], spec["batch"]) == (2, "-acc", True, "night")
    assert [(one["job"], one["when"]) for one in spec["after"]] == [("prep", "succeeded"), ("old", "ended")]
    assert "source_id" not in spec


def test_the_profile_is_laid_over_the_file_and_removes_what_it_contradicts(spec_of: Any) -> None:
    spec = spec_of(FILE, "--profile", "debug")
    assert spec["entry"] == "train.py --lr 1 --version 1.10 --amp --layers 1 02 --steps 5".split()
    assert (spec["device"], spec["gpu"], spec["gpu_memory_gb"]) == ("cpu", None, None)
    assert (spec["max_nodes"], spec["grow"]) == (1, False)
    assert (spec["env"], spec["secrets"]) == ({"A": "1.10", "B": "two", "KEY": "plain"}, {})
    assert spec["priority"] == -5


def test_arguments_are_not_given_to_another_script(spec_of: Any) -> None:
    assert spec_of(FILE, "--profile", "eval")["entry"] == ["eval.py", "--fast"]


def test_what_is_typed_comes_first(spec_of: Any) -> None:
    words = "mine --nodes 2 --accels 4 -E A=x -E C=3 --time-limit 1h -D other --profile debug --device cuda --gpu A100"
    spec = spec_of(FILE, *words.split(), "--", "other.py", "--x")
    assert (spec["name"], spec["entry"]) == ("mine", ["other.py", "--x"])
    assert (spec["min_nodes"], spec["max_nodes"], spec["accels"], spec["gpu"]) == (2, 2, 4, "A100")
    assert (spec["device"], spec["datasets"], spec["time_limit_s"]) == ("cuda", ["other"], 3600)
    assert spec["env"] == {"A": "x", "B": "two", "C": "3", "KEY": "plain"}


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (["--accels", "2"], {"gpu": "H100", "accels": 2}),
        (["--gpu", "A100:4"], {"gpu": "A100", "accels": 4}),
        (["--nodes", "1"], {"grow": False, "min_nodes": 1}),
        (["--env", "KEY=x"], {"secrets": {}, "env": {"A": "1.10", "B": "true", "KEY": "x"}}),
        (["--device", "cpu"], {"gpu": None, "gpu_memory_gb": None, "accels": 1}),
        (["hello"], {"name": "hello"}),
        (["--", "--lr", "9"], {"entry": [*"train.py --lr 3e-4 --version 1.10 --amp --layers 1 02 --lr 9".split()]}),
        (["x", "--"], {"name": "x", "priority": -5}),
    ],
)
def test_one_typed_option_changes_what_belongs_to_it(spec_of: Any, words: list[str], spec: dict[str, Any]) -> None:
    found = spec_of(FILE, *words)
    assert {key: found[key] for key in spec} == spec


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-E", "C"], "--env 'C' has no '='"),
        (["-E", "A=1", "-E", "A=2"], "--env A is given twice"),
        (["-S", "K"], "--secret 'K' has no '='"),
        (["--label", "rack"], "--label 'rack' has no '='"),
    ],
)
def test_mistakes_in_typed_options_are_still_found(cli: Cli, folder: Path, words: list[str], message: str) -> None:
    Path("shoal.yaml").write_text(FILE)
    ran = cli("training", "run", "--print-spec", *words)
    assert ran.code == 2 and message in ran.err, ran.err


def test_the_options_of_training_run_are_the_keys_of_the_file() -> None:
    code = {field.name for field in dataclasses.fields(CodeFlags)} - {"dataset", "env", "emulate_cuda"}
    options = {field.name for field in dataclasses.fields(JobFlags)} - code
    keys = {OPTION_OF.get(key, key) for key in ProjectJob.model_fields}
    assert keys == options | {"name", "run", "args", "batch", "after"}


def test_without_a_name_the_folder_gives_it(spec_of: Any) -> None:
    assert spec_of("run: train.py")["name"] == "my-project"


def test_a_file_of_another_folder_is_read_with_dir(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "shoal.yaml").write_text("run: other.py\naccels: 3\n")
    ran = cli("training", "run", "--print-spec", "--dir", str(tmp_path / "exp"))
    spec = json.loads(ran.out)
    assert (spec["name"], spec["entry"], spec["accels"]) == ("exp", ["other.py"], 3)


@pytest.mark.parametrize("where", [["-u", "https://h/r"], ["--file", "train.py"], ["--source", "exp"]])
def test_the_file_is_not_read_for_code_from_elsewhere(spec_of: Any, cli: Cli, where: list[str]) -> None:
    spec = spec_of(FILE, "x", *where, "--", "train.py")
    assert (spec["accels"], spec["gpu"], spec["env"]) == (1, None, {})
    ran = cli("training", "run", "x", *where, "--profile", "debug", "--", "train.py")
    assert ran.code == 2 and "--profile needs code from a folder" in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: train.py\ntime-limit: 8h", "shoal.yaml, line 2: unknown key 'time-limit'. Did you mean 'time_limit'?"),
        ("run: a.py\n\ngpus: 8", "shoal.yaml, line 3: unknown key 'gpus'. Did you mean 'accels'?"),
        ("profiles:\n  big:\n    nods: 2", "shoal.yaml, line 3: unknown key 'nods'. Did you mean 'nodes'?"),
        ("profiles:\n  big:\n    profiles: {}", "shoal.yaml, line 3: unknown key 'profiles'."),
        ("accels: many", "shoal.yaml, line 1: accels: Input should be a valid integer"),
        ("accels: 0", "accels: Input should be greater than or equal to 1"),
        ("env:\n  A: x\n  USE: true", "shoal.yaml, line 3: env.USE: true is a YAML boolean"),
        ("env: {RANK: 1}", "env: RANK is set by Shoal"),
        ("a: 1\ntime_limit: 5", "line 1: unknown key 'a'"),
        ("time_limit: 5", "shoal.yaml, line 1: time_limit: 5 has no unit. time_limit 5s, 5m or 5h?\n"),
        ("memory: 16", "memory: '16' is not a size"),
        ("nodes: 4:1", "nodes: '4:1' is not a range of nodes"),
        ("gpu: 'H100:x'", "gpu: 'H100:x' is not a model of a GPU"),
        ("device: tpu", "device: Input should be 'auto', 'any', 'gpu', 'cpu', 'cuda', 'rocm' or 'xpu'"),
        ("name: a b", "name: 'a b' is not a usable name"),
        ("run: ''", "run: no script is given"),
        ("args: 'a \"'", "args: No closing quotation"),
        ("args:\n  x: {y: 1}", "line 2: args.x"),
        ("profiles:\n  a: {accels: 1}\n  b: {accels: x}", "line 3: profiles.b.accels: Input should be a valid integer"),
        ("profiles:\n  a: 3", "line 2: profiles.a: a mapping of options is needed here"),
        ("1: x", "line 1: unknown key '1'."),
        ("run: a.py\ntrue: x", "line 2: unknown key 'true'."),
        ("datasets: wiki", "datasets: Input should be a valid list"),
        ("- a", "should be a mapping of options"),
        ("run: [", "is not YAML"),
        ("run: a.py\nrun: b.py", "'run' is given twice"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(cli: Cli, folder: Path, text: str, message: str) -> None:
    Path("shoal.yaml").write_text(text)
    ran = cli("training", "run", "x", "--print-spec", "--", "train.py")
    assert ran.code == 2 and message in ran.err, ran.err
    assert "hint: shoal init" in ran.err and not ran.out


def test_a_profile_that_is_not_there_is_named(cli: Cli, folder: Path) -> None:
    ran = cli("training", "run", "x", "--profile", "big", "--", "train.py")
    assert ran.code == 2 and "needs shoal.yaml, which does not exist" in ran.err
    Path("shoal.yaml").write_text(FILE)
    ran = cli("training", "run", "--profile", "debog")
    assert ran.code == 2 and "no profile 'debog'. Did you mean 'debug'?" in ran.err
    ran = cli("training", "run", "--profile", "big")
    assert ran.code == 2 and "It has: debug, eval." in ran.err


def test_a_script_is_still_no_name(cli: Cli, folder: Path) -> None:
    Path("shoal.yaml").write_text("accels: 2")
    ran = cli("training", "run", "train.py")
    assert ran.code == 2 and "The job needs a name" in ran.err
    ran = cli("training", "run", "x", "--print-spec")
    assert ran.code == 2 and "No script given" in ran.err


def submit(cli: Cli, stub: Stub, taken: list[str], *words: str) -> Ran:
    accept(stub)
    stub.routes[f"GET {JOBS}"] = reply(body=[views.job("succeeded", name=name) for name in taken])
    stub.asked.clear()
    return cli("training", "run", "--no-preflight", *words)


def test_a_job_named_by_the_file_is_numbered_when_the_name_is_taken(cli: Cli, stub: Stub, folder: Path) -> None:
    Path("shoal.yaml").write_text("name: gpt\nrun: train.py\n")
    for taken, name in (([], "gpt"), (["gpt"], "gpt-2"), (["gpt", "gpt-9", "gpt-x", "my-gpt-30"], "gpt-10")):
        ran = submit(cli, stub, taken)
        assert ran.code == 0, ran.err
        spec = asked(stub, "/jobs")
        assert (spec["name"], spec["entry"]) == (name, ["train.py"])
    assert "Using shoal.yaml." in ran.err
    assert submit(cli, stub, ["gpt"], "gpt").code == 0
    assert asked(stub, "/jobs")["name"] == "gpt", "a typed name that is free is never changed"


def test_nothing_is_sent_by_print_spec(cli: Cli, stub: Stub, folder: Path) -> None:
    Path("shoal.yaml").write_text(FILE)
    assert cli("training", "run", "--print-spec", "--profile", "debug").code == 0
    assert not stub.asked


def test_a_file_without_the_sdk_is_sent_with_the_same_spec_as_printed(cli: Cli, stub: Stub, folder: Path) -> None:
    Path("shoal.yaml").write_text(FILE)
    printed = json.loads(cli("training", "run", "--print-spec").out)
    assert submit(cli, stub, []).code == 0
    assert asked(stub, "/jobs") == printed | {"source_id": "src_1"}


def test_preflight_and_quote_read_the_file_too(cli: Cli, stub: Stub, folder: Path) -> None:
    Path("shoal.yaml").write_text("name: gpt\nrun: train.py\naccels: 3\nprofiles: {two: {args: {lr: 2}}}\n")
    accept(stub)
    cli("training", "quote", "--profile", "two")
    wanted = asked(stub, "/quotes")
    assert (wanted["entry"], wanted["accels"]) == (["train.py", "--lr", "2"], 3)
    accept(stub)
    stub.asked.clear()
    cli("preflight", "--profile", "two")
    spec = asked(stub, "/preflights")
    assert (spec["name"], spec["entry"], spec["accels"]) == ("gpt", ["train.py", "--lr", "2"], 3)


def test_the_file_that_the_guide_shows_is_valid(folder: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "howto" / "project-file.md"
    shown = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(shown) == 3
    for text in shown:
        Path("shoal.yaml").write_text(text)
        found = read_project(Path("shoal.yaml"))
        for profile in found.profiles or ():
            found.options(profile)
