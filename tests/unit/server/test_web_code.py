"""The Code tab: files as they were sent, in colours, and what else it takes to run a job again."""

import io
import zipfile

import pytest
from web_run import PNG, Run

from shoal.core.metrics import RunImport
from shoal.core.people import SecretSet
from shoal.core.schema import utcnow
from shoal.server.jobs import imported_runs
from shoal.server.people import secrets
from shoal.server.web.files import highlight
from shoal.server.web.redact import Redactor, names_secret

XSS = "</pre><script>alert(1)</script>"


@pytest.fixture
def run(ctx, anna):
    files = {
        "train.py": f"# {XSS}\nimport torch\n\n\ndef main():\n    print('hello')\n".encode(),
        "lib/model.py": b"class Net: pass\n",
        "logo.png": PNG,
        "evil.svg": b"<svg onload='alert(1)'/>",
        "weights.bin": b"\0\1\2",
    }
    return Run(
        ctx, anna, files=files, entry=["train.py", "--lr", "3"], env={"MODE": "fast", "HF_TOKEN": "hf_planted_value"},
        origin={"kind": "git", "url": "https://example.org/x.git", "commit": "0123456789abcdef"},
    )  # fmt: skip


def code(browser, query="", **options):
    answer = browser.get(f"/w/default/jobs/a-job/code{query}", **options)
    assert answer.status_code == 200, answer.text
    return answer


def test_the_script_that_runs_is_shown_first_with_its_text_escaped(browser, run):
    page = code(browser).text
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script>alert" not in page
    assert '<span class="hk">def</span>' in page and '<span class="hf">main</span>' in page
    assert "0123456789ab" in page and "https://example.org/x.git" in page


def test_folders_and_files_are_walked_through(browser, run):
    assert [e["name"] for e in code(browser, ".json").json()["tree"]["entries"]] == [
        "lib", "evil.svg", "logo.png", "train.py", "weights.bin",
    ]  # fmt: skip
    part = code(browser, "?file=lib/model.py", headers={"HX-Request": "true"}).text
    assert "<html" not in part and '<span class="hf">Net</span>' in part
    assert "This file is not text" in code(browser, "?file=weights.bin").text
    missing = browser.get("/w/default/jobs/a-job/code?file=lib/modle.py")
    assert missing.status_code == 404 and "lib/model.py" in missing.text and "the code of job" in missing.text


def test_pictures_are_shown_and_whatever_could_hold_script_is_only_saved(browser, run):
    shown = browser.get("/w/default/jobs/a-job/code/picture?file=logo.png")
    assert shown.headers["content-type"] == "image/png" and "sandbox" in shown.headers["content-security-policy"]
    assert browser.get("/w/default/jobs/a-job/code/picture?file=evil.svg").status_code == 404
    saved = browser.get("/w/default/jobs/a-job/code/download?file=evil.svg")
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment") and saved.content.startswith(b"<svg")


def test_all_of_it_comes_as_a_zip(browser, run):
    answer = browser.get("/w/default/jobs/a-job/code/archive")
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    assert "a-job-code/lib/model.py" in names and "a-job-code/train.py" in names
    assert 'filename="a-job-code.zip"' in answer.headers["content-disposition"]


def test_interpreter_packages_and_config_are_told_and_secrets_are_not(browser, run, ctx, anna):
    secrets.set_secret(ctx, anna.access(), SecretSet(name="key", value="planted-secret-value"))
    assert "known once it has started" in code(browser).text
    run.environment("3.11.2", torch="2.6.0", numpy="2.1")
    run.config(lr=0.1, note=f"{XSS} planted-secret-value", api_key="k-123456", model={"width": 64})
    page = code(browser).text
    assert "3.11.2" in page and "2 packages" in page and "2.6.0" in page
    assert "MODE=fast" in page and "HF_TOKEN=***" in page
    assert "{&#34;width&#34;: 64}" in page
    for planted in ("planted-secret-value", "k-123456", "<script>alert"):
        assert planted not in page
    twin = code(browser, ".json").json()
    assert twin["environment"] == {"python": "3.11.2", "packages": {"torch": "2.6.0", "numpy": "2.1"}, "attempt": 1}
    assert twin["config"]["api_key"] == "***" and twin["config"]["lr"] == 0.1


def test_the_newest_attempts_environment_counts(browser, run):
    run.environment("3.11.2", torch="2.6.0").send("system", {"cpu": 10.0})
    run.attempt().environment("3.12.0", torch="2.7.0")
    assert code(browser, ".json").json()["environment"]["python"] == "3.12.0"
    samples = browser.get("/w/default/jobs/a-job/system.json").json()["samples"]
    assert samples[0]["series"] == {"cpu": [10.0]}


def test_a_module_or_a_launchers_script_is_found_as_the_entry(ctx, anna, browser):
    Run(ctx, anna, files={"pkg/go.py": b"print(1)\n"}, entry=["-m", "pkg.go"])
    assert code(browser, ".json").json()["preview"]["path"] == "pkg/go.py"
    Run(ctx, anna, "b", files={"x.py": b"1\n"}, entry=["torchrun", "--nnodes", "1", "x.py"])
    assert browser.get("/w/default/jobs/b/code.json").json()["preview"]["path"] == "x.py"


def test_a_run_from_elsewhere_has_no_code_here_and_says_so(browser, ctx, anna):
    brought = RunImport(run_id="r1", name="brought", created=utcnow(), argv=["train.py"], path="/data/runs/x")
    imported_runs.begin(ctx, anna.access(), brought)
    page = browser.get("/w/default/jobs/brought/code").text
    assert "No code was sent" in page and "/data/runs/x" in page and "not told" in page


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "x = 'a\nb'\n\n"),
        ("none", "a\n\nb"),
        ("a.py", ""),
        ("a.py", "\ttab\r\nend"),
        ("big.py", "x = 1\n" * 20_000),
    ],
)
def test_highlighting_changes_no_character(path, text):
    lines = highlight.lines(path, text)
    joined = "\n".join("".join(piece for _, piece in line) for line in lines)
    assert joined.rstrip("\n") == text.replace("\r\n", "\n").rstrip("\n")


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "aws_secret_access_key", "db.password", "token", "AWS_ACCESS_KEY_ID"]
)
def test_names_that_tell_of_a_secret(name):
    assert names_secret(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokenizer", "eos_token", "TOKENIZERS_PARALLELISM", "keys", "lr", "sort_key"]
)
def test_names_that_do_not(name):
    assert not names_secret(name)


def test_a_redactor_hides_values_flags_and_logins_and_leaves_the_rest():
    hide = Redactor(["planted-secret"])
    assert hide.words(["train.py", "--api-key", "abc", "--token=xyz", "--lr", "3", "planted-secret"]) == [
        "train.py", "--api-key", "***", "--token=***", "--lr", "3", "***",
    ]  # fmt: skip
    assert hide.text("git clone https://me:pass@host/x and a@b.c") == "git clone https://***@host/x and a@b.c"
    assert hide.data({"a": ["planted-secret", 1, None], "password": "x", "max_tokens": 5}) == {
        "a": ["***", 1, None], "password": "***", "max_tokens": 5,
    }  # fmt: skip
