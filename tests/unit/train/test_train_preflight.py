"""Checks before a training starts, and the messages it is refused with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.errors import Refused, UsageError
from shoal.train import preflight, probe
from shoal.train.hosts import Host, read_servers
from shoal.train.preflight import Needs, Place, check

FINE = {
    "cwd": True,
    "missing": [],
    "has_shoal": True,
    "gpus": {},
    "free_bytes": 1 << 40,
    "interfaces": {"lo": "127.0.0.1", "eth0": "10.0.0.5"},
    "port": 4321,
}


class Known(Host):
    """A machine of which we know what it would answer."""

    answers = {}

    def examine(self, asked):
        return FINE | self.answers.get(self.address, {})


@pytest.fixture
def machines():
    Known.answers = {}

    def make(**answers):
        Known.answers = {name.replace("_", "."): answer for name, answer in answers.items()}
        return [Place(Known(address)) for address in Known.answers]

    return make


def problem(places, needs):
    with pytest.raises(Refused) as caught:
        check(places, needs)
    return f"{caught.value.message} / {caught.value.hint}"


def test_this_machine_is_ready_for_work_on_its_cpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.pkl").touch()
    (ready,) = check([Place(Host())], Needs(workers=3, paths=["data.pkl"], free_bytes=1))
    assert ready.place.slots == (0, 1, 2)
    assert ready.interface == "lo"
    assert 0 < ready.port < 65536


def test_missing_data_is_refused_by_name_as_e3(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = problem([Place(Host())], Needs(paths=["feat/train.pkl"], free_bytes=1))
    assert "E3: no data at feat/train.pkl" in told
    assert str(tmp_path) in told


def test_a_machine_without_gpus_is_refused_as_e2(machines):
    told = problem(machines(a={}), Needs(gpus=True))
    assert "a: E2: there is no GPU" in told and "use_gpu to False" in told


def test_gpus_in_use_or_absent_are_refused_by_number(machines):
    (place,) = machines(a={"gpus": {"0": 3, "1": 9000, "2": 4}})
    told = problem([place._replace(slots=(0, 1, 5))], Needs(gpus=True))
    assert "E2: GPU 1, 5 in use or missing; free GPUs: [0, 2]" in told
    (ready,) = check([place._replace(slots=(0, 1))], Needs(gpus=True, check_gpus=False))
    assert ready.place.slots == (0, 1)


def test_too_few_free_gpus_are_refused_with_how_many_there_are(machines):
    told = problem(machines(a={"gpus": {"0": 3, "1": 9000}}), Needs(gpus=True, workers=2))
    assert "E2: 2 GPUs are needed, but only 1 available" in told


def test_everything_that_is_wrong_with_every_machine_is_told_at_once(machines):
    places = machines(
        one={"cwd": False, "interfaces": {"eth0": "one"}},
        two={"has_shoal": False, "free_bytes": 1 << 20, "interfaces": {"eth0": "two"}},
    )
    told = problem(places, Needs())
    assert "one: E3: the working directory" in told
    assert "two: " in told and "has no shoal" in told and "1 MiB are free on the disk" in told


def test_the_interface_is_that_of_the_address_among_servers(machines):
    places = machines(**{"10_0_0_5": {}, "10_0_0_6": {"interfaces": {"lo": "127.0.0.1", "ib0": "10.0.0.6"}}})
    assert [r.interface for r in check(places, Needs())] == ["eth0", "ib0"]


def test_an_interface_that_cannot_be_told_is_refused_as_e4(machines):
    many = {"interfaces": {"lo": "127.0.0.1", "eth0": "10.0.0.5", "eth1": "10.1.0.5"}}
    told = problem(machines(node_a=many, node_b=many), Needs())
    assert "E4: cannot determine the network interface with the address node.a; there are eth0, eth1, lo" in told
    assert "set net_name" in told


def test_an_interface_that_is_not_there_is_refused_with_those_that_are(machines):
    told = problem(machines(a={}), Needs(interface="en0"))
    assert "E4: there is no network interface en0; there are eth0, lo" in told


def test_a_machine_that_does_not_answer_is_refused_with_what_to_try(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    told = problem([Place(Host("nobody@unknown.invalid"))], Needs())
    assert "does not answer" in told and "ssh nobody@unknown.invalid true" in told


def test_the_probe_runs_as_it_is_with_the_standard_library_only(tmp_path):
    asked = json.dumps({"cwd": str(tmp_path), "paths": ["none"], "gpus": False})
    source = Path(probe.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-", asked], input=source, capture_output=True, text=True, check=True
    )
    found = probe.answer_in("a greeting of the shell\n" + done.stdout)
    assert found["cwd"] and found["missing"] == ["none"] and found["interfaces"]["lo"] == "127.0.0.1"


def test_paths_among_parameters_are_found_however_nested():
    assert preflight.data_paths("a", ["b", ("c", "")], None, "", "a") == ["a", "b", "c"]


def test_servers_come_from_files_with_comments_and_slots(tmp_path):
    (tmp_path / "one").write_text("10.0.0.5:0,1\n# all of it\nme@10.0.0.6   # spare\n")
    (tmp_path / "two").write_text("10.0.0.5:3\n")
    found = read_servers(f"{tmp_path}/one,{tmp_path}/two")
    assert found == [(Host("10.0.0.5"), [0, 1, 3]), (Host("me@10.0.0.6"), [])]


@pytest.mark.parametrize("line", ["10.0.0.5:a", ":0"])
def test_a_line_that_is_no_server_is_refused_with_its_place(tmp_path, line):
    (tmp_path / "servers").write_text(f"10.0.0.4\n{line}\n")
    with pytest.raises(UsageError, match=r"servers:2: .* is not a server"):
        read_servers(str(tmp_path / "servers"))


def test_a_servers_file_that_is_not_there_or_empty_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no servers file"):
        read_servers(str(tmp_path / "none"))
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(UsageError, match="names no server"):
        read_servers(str(tmp_path / "empty"))


def test_this_machine_is_known_by_all_of_its_names():
    assert all(Host(name).is_here for name in ("", "localhost", "127.0.0.1", "127.0.1.1", "me@localhost"))
    assert not Host("198.51.100.7").is_here


def test_a_command_for_another_machine_goes_through_ssh_quoted():
    command = Host("me@198.51.100.7").command(["python", "-c", "print('a b')"], "/a dir")
    assert command[0] == "ssh" and "BatchMode=yes" in command and command[-2] == "me@198.51.100.7"
    assert command[-1] == """cd '/a dir' && exec python -c 'print('"'"'a b'"'"')'"""
    assert Host().command(["python", "x.py"], "/a dir") == ["python", "x.py"]
