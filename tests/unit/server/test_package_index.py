"""The server is a package index: pip gets Shoal, in the server's own version, and what it needs, also without the internet."""

import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile

import pytest
from web_browser import Browser

import shoal
from shoal.core.install import install_command
from shoal.server.packages import installer, wheels


@pytest.fixture
def stranger_on_the_web(app):
    return Browser(app)


def links(page):
    return re.findall(r'<a href="([^"]+)"', page.text)


def wheel(browser, project):
    (link,) = links(browser.get(f"/simple/{project}/"))
    name, _, digest = link.partition("#sha256=")
    body = browser.get(f"/simple/{project}/{name}").content
    assert not digest or hashlib.sha256(body).hexdigest() == digest
    return name, zipfile.ZipFile(io.BytesIO(body))


def test_shoal_comes_in_two_parts_in_the_servers_own_version(stranger_on_the_web):
    name, ours = wheel(stranger_on_the_web, "shoal-train")
    assert name == f"shoal_train-{shoal.__version__}-py3-none-any.whl"
    top = {file.partition("/")[0] for file in ours.namelist()}
    assert top == {"shoal", f"shoal_train-{shoal.__version__}.dist-info"}, "nothing that shadows another package"
    assert {"shoal/py.typed", "shoal/cli/main.py", "shoal/server/web/templates/base.html"} <= set(ours.namelist())
    info = f"shoal_train-{shoal.__version__}.dist-info"
    assert "Name: shoal-train\n" in ours.read(f"{info}/METADATA").decode()
    scripts = ours.read(f"{info}/entry_points.txt").decode()
    assert "shoal = shoal.cli.main:main" in scripts and "flexai" not in scripts and "LocalKind" in scripts
    _, compat = wheel(stranger_on_the_web, "shoal_compat".replace("_", "-"))
    top = {file.partition("/")[0] for file in compat.namelist()}
    assert top == {"NetmindMixins", "topspin", "palframe", f"shoal_compat-{shoal.__version__}.dist-info"}


def test_what_the_client_needs_is_there_too_and_nothing_of_the_server(stranger_on_the_web):
    names = {link.strip("/") for link in links(stranger_on_the_web.get("/simple/"))}
    assert {"shoal-train", "shoal-compat", "httpx", "pydantic", "pydantic-core", "rich"} <= names
    assert not names & {"torch", "fastapi", "sqlalchemy", "pytest"}
    assert len(names) <= 32, "pip install shoal-train brings at most 30 packages"
    name, rich = wheel(stranger_on_the_web, "rich")
    assert re.fullmatch(r"rich-[\d.]+-py3-none-any\.whl", name)
    assert "rich/console.py" in rich.namelist() and rich.testzip() is None
    record = next(file for file in rich.namelist() if file.endswith("/RECORD"))
    assert len(rich.read(record).splitlines()) == len(rich.namelist())
    name, core = wheel(stranger_on_the_web, "Pydantic_Core".lower().replace("_", "-"))
    assert "-cp3" in name and any(file.endswith(".so") for file in core.namelist())


def test_an_admin_adds_wheels_for_machines_without_the_internet(stranger_on_the_web, ctx):
    folder = ctx.layout.root / "wheels"
    folder.mkdir()
    (folder / "torch-2.9.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"wheel")
    (folder / "notes.txt").write_text("not a wheel")
    assert "torch/" in links(stranger_on_the_web.get("/simple/"))
    assert links(stranger_on_the_web.get("/simple/torch/")) == ["torch-2.9.0+cpu-cp311-cp311-linux_x86_64.whl"]
    name = "torch-2.9.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
    assert stranger_on_the_web.get(f"/simple/torch/{name}").content == b"wheel"
    for path in ("/simple/notes/", "/simple/torch/..%2Fnotes.txt", "/simple/shoal/", "/simple/rich/other.whl"):
        assert stranger_on_the_web.get(path).status_code == 404, path
    assert stranger_on_the_web.get("/simple/Shoal_Train").status_code == 301


def test_the_command_names_the_server_and_trusts_it_only_where_pip_would_not():
    assert install_command("swarm") == "pip install 'shoal-train[swarm]'"
    at = install_command(server="http://10.0.0.5:8080/", compat=True)
    assert (
        at
        == "pip install --extra-index-url http://10.0.0.5:8080/simple/ --trusted-host 10.0.0.5 shoal-train shoal-compat"
    )
    assert "trusted" not in install_command(server="https://shoal.example.org")
    assert "trusted" not in install_command(server="http://127.0.0.1:9")


def test_with_a_private_ca_the_line_checks_it_and_runs_the_installer(stranger_on_the_web):
    line = install_command("swarm", server="https://10.0.0.5:8443/", fingerprint="sha256:4f0c", compat=True)
    program, _, rest = line.removeprefix('python3 -c "').partition('" ')
    compile(program, "line", "exec")
    assert not set('"$`\\!') & set(program), "shells change none of it, interactive ones included"
    assert rest == "https://10.0.0.5:8443 4f0c 'shoal-train[swarm]' shoal-compat"
    joins = install_command(server="https://10.0.0.5:8443", fingerprint="sha256:4f0c", invitation="shoali_a")
    assert joins.endswith(" https://10.0.0.5:8443 4f0c --join shoali_a")
    text = stranger_on_the_web.get("/install.py").text
    assert f'VERSION = "{shoal.__version__}"' in text
    assert not re.search(r"(?m)^(from|import) +shoal", text), "it runs where Shoal is not installed yet"


@pytest.fixture
def installs(monkeypatch, tmp_path, capsys):
    """Run the installer on a machine where pip behaves as a test says; return what it ran and showed."""
    monkeypatch.setattr(installer, "VERSION", "0.1.0")
    monkeypatch.setattr(installer, "own_environment", lambda: tmp_path / "venv" / "bin" / "python")
    monkeypatch.setattr(os, "execv", lambda path, words: ran.append(["exec", *words]))
    ran, exits = [], {}

    def run(line, **_):
        ran.append([str(word) for word in line])
        code = next((exits[word] for word in exits if word in ran[-1]), 0)
        return subprocess.CompletedProcess(line, code, "", "no such wheel\n")

    monkeypatch.setattr(subprocess, "run", run)

    def start(*words, fails=()):
        ran.clear()
        exits.update(dict.fromkeys(fails, 1))
        code = installer.main(["https://10.0.0.5:8443", "4f0c", *words], "CA")
        return code, [line for line in ran if "install" in line or line[0] == "exec"], capsys.readouterr()

    return start


def test_the_installer_asks_the_server_first_and_others_only_for_what_it_lacks(installs):
    code, (install,), shown = installs()
    assert code == 0 and install[-3:] == ["--index-url", "https://10.0.0.5:8443/simple/", "shoal-train==0.1.0"]
    assert "login --url https://10.0.0.5:8443 --fingerprint sha256:4f0c" in shown.out
    code, lines, shown = installs("shoal-train[swarm]", "shoal-compat", "--join", "shoali_a", fails=["--index-url"])
    assert code == 0 and len(lines) == 3 and "does not have all packages" in shown.out
    wanted = ["--extra-index-url", "https://10.0.0.5:8443/simple/", "shoal-train[swarm]==0.1.0", "shoal-compat==0.1.0"]
    assert lines[1][-4:] == wanted
    assert lines[2][2:] == ["signup", "--invitation", "https://10.0.0.5:8443/invite/shoali_a#sha256:4f0c"]
    code, _, shown = installs(fails=["--index-url", "--extra-index-url"])
    assert code == 1 and "no such wheel" in shown.err


def test_the_installer_makes_an_environment_unless_one_is_active(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"/bin:{tmp_path}/.local/bin")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    made = []
    monkeypatch.setattr(installer.venv, "create", lambda folder, with_pip: made.append((folder, with_pip)))
    assert installer.own_environment() == tmp_path / ".local/share/shoal/venv/bin/python"
    assert made == [(tmp_path / ".local/share/shoal/venv", True)]
    assert installer.link(tmp_path / ".local/share/shoal/venv/bin/shoal") == "shoal"
    assert (tmp_path / ".local/bin/shoal").readlink() == tmp_path / ".local/share/shoal/venv/bin/shoal"
    monkeypatch.setenv("PATH", "/bin")
    assert installer.link(tmp_path / ".local/share/shoal/venv/bin/shoal") == str(tmp_path / ".local/bin/shoal")
    monkeypatch.setattr(sys, "prefix", "/an/environment")
    assert str(installer.own_environment()) == sys.executable


def test_a_machine_of_the_pool_gets_the_modules_for_other_platforms_too():
    packed = zipfile.ZipFile(io.BytesIO(wheels.pack_own([*wheels.OURS, *wheels.COMPAT_MODULES])))
    assert {"NetmindMixins/__init__.py", "shoal/__init__.py"} <= set(packed.namelist())
