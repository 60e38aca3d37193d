"""Fetching repositories: the right files of the right revision, else one clear line; nothing gained by trickery."""

import os
import shutil
import socket
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from gitserver import GitHttp, commit, git, make_repo

from shoal.core.errors import GitFailed, InvalidSpec, NotFound, SourceTooLarge, Unreachable
from shoal.core.people import GitFetch, GitSourceAdd, RegistryConnect
from shoal.server.git.errors import explain
from shoal.server.git.fetch import GitFetcher
from shoal.server.git.service import add_git_source, clean_up, connect_registry, fetch
from shoal.server.git.urls import check_revision, parse_git_url
from shoal.testing.server import AppClient, add_person, make_app

TOKEN = "ghp_the-token-of-the-test"


@pytest.fixture
def pctx(private_ctx):
    return private_ctx


@pytest.fixture
def access(private_ctx):
    return add_person(private_ctx, "olga@example.org").access()


@pytest.fixture(scope="module")
def first_repo(tmp_path_factory):
    repo = make_repo(tmp_path_factory.mktemp("first") / "demo")
    commit(repo, {"train.py": "print(1)\n", "lib/util.py": "x = 1\n"})
    git(repo, "tag", "-a", "-m", "one", "v1")
    git(repo, "tag", "light")
    git(repo, "checkout", "--quiet", "-b", "feature/other")
    commit(repo, {"train.py": "print('other')\n"})
    git(repo, "checkout", "--quiet", "main")
    commit(repo, {"train.py": "print(2)\n"})
    return repo


@pytest.fixture
def repo(first_repo, tmp_path):
    """main: two commits; branch 'other'; tags v1 (annotated) and light."""
    return Path(shutil.copytree(first_repo, tmp_path / "repos" / "demo"))


def contents(ctx, access, **asked):
    with fetch(ctx, access, GitFetch(**asked)) as (tree, origin):
        files = {str(p.relative_to(tree)): p.read_text() for p in sorted(tree.rglob("*")) if p.is_file()}
    assert not tree.exists()
    assert_nothing_left(ctx)
    return files, origin


def refusal(ctx, access, kind=GitFailed, **asked):
    with pytest.raises(kind) as caught, fetch(ctx, access, GitFetch(**asked)):
        raise AssertionError("fetched what should have been refused")
    assert "\n" not in caught.value.message
    assert_nothing_left(ctx)
    return caught.value


def assert_nothing_left(ctx):
    work = ctx.layout.server_dir / "git"
    assert not work.exists() or list(work.iterdir()) == []
    assert not [p for p in psutil.Process().children(recursive=True) if "git" in p.name()]


@contextmanager
def serving(root, **options):
    with GitHttp(root, **options).serving() as server:
        yield server


def test_the_default_branch_is_fetched_without_history_or_dot_git(pctx, access, repo):
    files, origin = contents(pctx, access, url=str(repo))
    assert files == {"train.py": "print(2)\n", "lib/util.py": "x = 1\n"}
    assert origin == {"kind": "git", "url": str(repo), "revision": "main", "commit": git(repo, "rev-parse", "main")}


@pytest.mark.parametrize(
    ("revision", "line"),
    [("main", "print(2)\n"), ("feature/other", "print('other')\n"), ("v1", "print(1)\n"), ("light", "print(1)\n"),
     ("refs/heads/feature/other", "print('other')\n"), ("HEAD", "print(2)\n")],
)  # fmt: skip
def test_branches_and_tags_are_found(pctx, access, repo, revision, line):
    files, origin = contents(pctx, access, url=f"file://{repo}", revision=revision)
    assert files["train.py"] == line
    assert origin["commit"] == git(repo, "rev-parse", f"{revision}^{{commit}}")
    assert origin["revision"] == revision


@pytest.mark.parametrize("length", [40, 12, 7])
def test_commits_are_found_by_their_hash_even_when_no_branch_ends_there(pctx, access, repo, length):
    first = git(repo, "rev-list", "--max-parents=0", "main")
    files, origin = contents(pctx, access, url=str(repo), revision=first[:length])
    assert files["train.py"] == "print(1)\n"
    assert origin["commit"] == first


def test_a_branch_wins_over_a_tag_of_the_same_name(pctx, access, repo):
    git(repo, "tag", "feature/other", "main")
    assert contents(pctx, access, url=str(repo), revision="feature/other")[0]["train.py"] == "print('other')\n"


@pytest.mark.parametrize("revision", ["mian", "f" * 40, "abcdef1"])
def test_an_unknown_revision_is_named(pctx, access, repo, revision):
    error = refusal(pctx, access, url=str(repo), revision=revision)
    assert f"no branch, tag or commit '{revision}'" in error.message
    assert ("Did you mean 'main'?" in error.message) == (revision == "mian")


@pytest.mark.parametrize(
    "revision", ["-x", "--upload-pack=x", "a b", "a:b", "a..b", "x\n", "a^", "@{1}", "a*", "/a", "+a", "a.lock"]
)
def test_revisions_that_git_would_read_otherwise_are_refused(pctx, access, repo, revision):
    assert "is not the name of a branch" in refusal(pctx, access, url=str(repo), revision=revision).message
    with pytest.raises(GitFailed):
        check_revision(revision)


def test_an_empty_repository_and_a_missing_one_are_told_apart(pctx, access, tmp_path):
    empty = make_repo(tmp_path / "empty")
    assert "is empty" in refusal(pctx, access, url=str(empty)).message
    assert "no repository at" in refusal(pctx, access, url=str(tmp_path / "nothing")).message


def test_nothing_of_the_repository_or_of_this_user_is_executed(pctx, access, repo, tmp_path, monkeypatch):
    witness = tmp_path / "witness"
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[filter "evil"]\n\tsmudge = "touch {witness}; cat"\n\trequired = true\n')
    hooks = tmp_path / "templates" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {witness}\n")
    (hooks / "post-checkout").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hooks.parent))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {witness}")
    commit(repo, {".gitattributes": "*.py filter=evil\n", ".githooks/post-checkout": f"#!/bin/sh\ntouch {witness}\n"})
    files, _ = contents(pctx, access, url=str(repo))
    assert files["train.py"] == "print(2)\n"
    assert not witness.exists()


def test_submodules_stay_empty_and_symlinks_stay_links(pctx, access, repo, tmp_path):
    inner = make_repo(tmp_path / "inner")
    commit(inner, {"secret.txt": "inner"})
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    (repo / "link").symlink_to("/etc/passwd")
    commit(repo, {})
    with fetch(pctx, access, GitFetch(url=str(repo))) as (tree, _):
        assert list((tree / "sub").iterdir()) == []
        assert (tree / "link").is_symlink()


@pytest.mark.parametrize("content", [b"\0" * (3 << 20), os.urandom(3 << 20)], ids=["expands", "is large"])
def test_a_repository_over_the_limit_is_refused_before_it_is_unpacked(pctx, access, repo, content):
    commit(repo, {"weights.bin": content})
    small = replace(pctx, settings=replace(pctx.settings, max_source_mb=1))
    error = refusal(small, access, SourceTooLarge, url=str(repo))
    assert "1 MiB" in error.message
    # Another revision of the same repository, within the limit, is still welcome.
    assert contents(small, access, url=str(repo), revision="v1")[0]["train.py"] == "print(1)\n"


def test_large_files_are_named(pctx, access, repo):
    commit(repo, {"weights.bin": b"\0" * (3 << 20)})
    small = replace(pctx, settings=replace(pctx.settings, max_source_mb=1))
    assert "weights.bin (3 MiB)" in refusal(small, access, SourceTooLarge, url=str(repo)).message


def test_a_host_that_never_answers_is_given_up_with_everything_killed(pctx, access):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.git"
        hasty = replace(pctx, settings=replace(pctx.settings, git_timeout_s=0.5))
        assert "within 0.5 seconds" in refusal(hasty, access, url=url).message


def test_a_closed_port_is_a_host_that_does_not_answer(pctx, access):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "does not answer" in refusal(pctx, access, url=f"http://127.0.0.1:{port}/x.git").message


def test_a_web_page_is_not_a_repository(pctx, access, tmp_path):
    with serving(tmp_path) as server:
        assert "no repository at" in refusal(pctx, access, url=f"{server.url}/nothing").message


def test_a_public_repository_comes_over_http(pctx, access, repo):
    with serving(repo.parent) as server:
        files, origin = contents(pctx, access, url=f"{server.url}/demo/.git", revision="v1")
    assert files["train.py"] == "print(1)\n"
    assert origin["url"] == f"{server.url}/demo/.git"


def test_a_private_repository_asks_to_connect_the_host_and_opens_with_its_token(pctx, access, repo):
    with serving(repo.parent, token=TOKEN) as server:
        url = f"{server.url}/demo/.git"
        error = refusal(pctx, access, url=url)
        assert "private" in error.message
        assert error.hint == f"shoal code-registry connect --host {server.netloc}"
        connect_registry(pctx, access, RegistryConnect(host=server.netloc, token="wrong"))
        error = refusal(pctx, access, url=url)
        assert "refused the token" in error.message
        assert error.hint == f"shoal code-registry connect --host {server.netloc}"
        connect_registry(pctx, access, RegistryConnect(host=server.netloc, token=TOKEN))
        assert contents(pctx, access, url=url)[0]["train.py"] == "print(2)\n"


def test_a_token_is_neither_on_a_command_line_nor_on_disk_nor_in_an_error(pctx, access, repo):
    seen = []

    def look():
        lines = [p / "cmdline" for p in Path("/proc").iterdir() if p.name.isdigit()]
        files = [p for p in pctx.layout.root.rglob("*") if p.is_file()]
        assert any("askpass" in p.name for p in files)
        for path in lines + files:
            try:
                seen.append(TOKEN.encode() in path.read_bytes())
            except OSError:
                continue

    with serving(repo.parent, token=TOKEN, during=look) as server:
        connect_registry(pctx, access, RegistryConnect(host=server.netloc, token=TOKEN))
        error = refusal(pctx, access, url=f"{server.url}/missing/{TOKEN[:4]}")
        assert TOKEN not in str(error.to_wire())
        contents(pctx, access, url=f"{server.url}/demo/.git")
    assert seen
    assert not any(seen)


def test_a_redirect_does_not_carry_the_token_to_another_host(pctx, access, repo):
    with (
        serving(repo.parent, token=TOKEN) as thief,
        serving(repo.parent, redirect_to=thief.url) as honest,
    ):
        connect_registry(pctx, access, RegistryConnect(host=honest.netloc, token=TOKEN))
        refusal(pctx, access, url=f"{honest.url}/demo/.git")
        assert thief.authorizations
        assert set(thief.authorizations) == {None}


def test_another_workspaces_token_is_not_used(pctx, access, repo):
    other = add_person(pctx, "other@example.org").access()
    with serving(repo.parent, token=TOKEN) as server:
        connect_registry(pctx, access, RegistryConnect(host=server.netloc, token=TOKEN))
        assert "asks to sign in" in refusal(pctx, other, url=f"{server.url}/demo/.git").message


def test_pinned_addresses_are_the_ones_connected_to_and_redirects_are_not_followed(repo, tmp_path):
    def fetcher(server, name):
        work = tmp_path / name
        work.mkdir()
        url = parse_git_url(f"http://git.example.test:{server.port}/demo/.git", private=False)
        return GitFetcher(url, work, timeout_s=20, max_bytes=1 << 20, pinned=["127.0.0.1"])

    with serving(repo.parent) as server, serving(repo.parent, redirect_to=server.url) as moved:
        assert fetcher(server, "a").checkout("v1").commit == git(repo, "rev-parse", "v1^{commit}")
        before = len(server.authorizations)
        with pytest.raises(GitFailed, match="has moved"):
            fetcher(moved, "b").checkout("v1")
        assert len(server.authorizations) == before


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0",
     "[::]", "10.0.0.1", "169.254.169.254", "100.64.0.1", "[fd00::1]", "[fe80::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"],
)  # fmt: skip
def test_a_shared_server_connects_to_nothing_inside_its_own_network(ctx, anna, host):
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.05)
        port = canary.getsockname()[1]
        error = refusal(ctx, anna.access(), url=f"http://{host}:{port}/x.git")
        assert "private network" in error.message or "cannot be found" in error.message
        with pytest.raises(TimeoutError):
            canary.accept()


def test_an_admin_permits_a_host_in_a_private_network_with_this_port_only(ctx, anna, repo):
    with serving(repo.parent) as server, serving(repo.parent) as other:
        ctx.settings = replace(ctx.settings, git_hosts=f"git.lan, {server.netloc.upper()}")
        assert contents(ctx, anna.access(), url=f"{server.url}/demo/.git")
        refused = refusal(ctx, anna.access(), url=f"{other.url}/demo/.git")
        assert "private network" in refused.message and f'git_hosts = "{other.netloc}"' in refused.hint


@pytest.mark.parametrize(
    "url", ["/etc", "file:///etc", "git@github.com:a/b", "ssh://git@github.com/a/b", "git://github.com/a/b"]
)
def test_a_shared_server_fetches_over_http_only(ctx, anna, url):
    assert "only over https" in refusal(ctx, anna.access(), url=url).message


@pytest.mark.parametrize(
    "url",
    ["", "-oProxyCommand=x", "--upload-pack=touch x", "ext::sh -c id", "ext::id", "fd::17", "a::b", "x", "./x", "../x", "~/x",
     "https://", "https://host", "https://host/", "https://host/a b", "https://host/a\nb", "https://ho%0ast/a",
     "https://host/a%0ahost=evil", "ftp://host/x", "javascript:alert(1)//x", "https://host:99999/x", "https://[::1/x", "ssh://-oX/x",
     "git@-oX:x", "host:-x", "https://-host/x", "https://host/x?y=z", "https://host/x#y", "file://elsewhere/x", "http://host\\@evil/x"],
)  # fmt: skip
def test_what_is_not_a_git_url_is_refused_in_one_line(pctx, access, url):
    refusal(pctx, access, url=url)


@pytest.mark.parametrize(
    "url",
    [f"https://user:{TOKEN}@github.com/a/b", f"https://{TOKEN}@github.com/a/b", f"ssh://git:{TOKEN}@github.com/a/b"],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(pctx, access, url):
    error = refusal(pctx, access, url=url)
    assert TOKEN not in str(error.to_wire())
    assert error.hint == "shoal code-registry connect --host github.com"


@pytest.mark.parametrize(
    ("text", "scheme", "host", "becomes"),
    [
        ("https://GitHub.com/a/b.git", "https", "github.com", "https://github.com/a/b.git"),
        ("https://host:443/a", "https", "host", "https://host/a"),
        ("http://host:8080/a", "http", "host", "http://host:8080/a"),
        ("https://[2001:DB8::1]:8443/a", "https", "2001:db8::1", "https://[2001:db8::1]:8443/a"),
        ("git@github.com:a/b.git", "ssh", "github.com", "git@github.com:a/b.git"),
        ("ssh://git@host:2222/a", "ssh", "host", "ssh://git@host:2222/a"),
        ("git://host/a", "git", "host", "git://host/a"),
        ("/srv/git/a", "file", "", "/srv/git/a"),
        ("file:///srv/git/a", "file", "", "file:///srv/git/a"),
    ],
)
def test_usual_urls_are_understood(text, scheme, host, becomes):
    url = parse_git_url(text, private=True)
    assert (url.scheme, url.host, url.text) == (scheme, host, becomes)


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("fatal: unable to access 'https://h/x/': Could not resolve host: h", "cannot be found"),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", "asks to sign in"),
        ("remote: Repository not found.\nfatal: repository 'https://h/x/' not found", "or it is private"),
        ("fatal: unable to access 'https://h/x/': The requested URL returned error: 403", "asks to sign in"),
        ("fatal: unable to access 'https://h/x/': The requested URL returned error: 301", "has moved"),
        ("fatal: unable to access 'https://h/x/': SSL certificate problem: self-signed certificate", "certificate"),
        ("fatal: unable to access 'https://h/x/': Failed to connect to h port 443", "does not answer"),
        ("fatal: https://h/x/info/refs not valid: is this a git repository?", "not a git repository"),
        ("Host key verification failed.\nfatal: Could not read from remote repository.", "host key"),
        ("warning: x\nfatal: something \x1b[31mnew", "something  [31mnew."),
        ("", "no reason"),
    ],
)
def test_gits_words_become_one_clear_line(said, means):
    error = explain(said, parse_git_url("https://h/x", private=True), signed_in=False)
    assert means in error.message
    assert error.message.isprintable()


def test_a_fetch_names_a_url_or_a_source_but_not_both(pctx, access):
    for asked in ({}, {"url": "/x", "source_name": "y"}):
        refusal(pctx, access, InvalidSpec, **asked)
    refusal(pctx, access, NotFound, source_name="nothing")


def test_too_many_fetches_at_once_are_turned_away(pctx, access, repo, monkeypatch):
    monkeypatch.setattr("shoal.server.git.service._WAIT_S", 0.01)
    pctx.guards.git_slots = threading.BoundedSemaphore(1)
    with pctx.guards.git_slots:
        refusal(pctx, access, Unreachable, url=str(repo))
    contents(pctx, access, url=str(repo))


def test_leftovers_of_a_killed_server_are_removed_at_start(pctx):
    left = pctx.layout.server_dir / "git" / "tmpabc" / "tree"
    left.mkdir(parents=True)
    clean_up(pctx)
    assert not left.exists()
    clean_up(pctx)


def test_named_sources_are_added_listed_used_and_deleted(pctx, access, repo, ctx, as_anna, as_berta):
    path = "/workspaces/default/git-sources"
    body = {"name": "examples", "url": "https://github.com/a/b", "revision": "v1"}
    made = as_anna.post(path, body)
    assert made.status_code == 201
    assert made.json() | {"created_at": ""} == body | {"created_at": ""}
    assert as_anna.get(path).json() == [made.json()]
    assert as_anna.post(path, body).json()["error"]["code"] == "name_taken"
    assert as_berta.get(path).json() == []
    assert as_berta.delete(f"{path}/examples").status_code == 404
    assert "Did you mean 'examples'?" in as_anna.delete(f"{path}/exampels").json()["error"]["message"]
    assert as_anna.delete(f"{path}/examples").status_code == 204
    assert as_anna.get(path).json() == []


@pytest.mark.parametrize(
    "body", [{"url": "ext::id"}, {"url": f"https://{TOKEN}@h/x"}, {"url": "https://h/x", "revision": "-x"}]
)
def test_a_source_that_could_never_be_fetched_is_not_added(as_anna, body):
    answer = as_anna.post("/workspaces/default/git-sources", {"name": "x"} | body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "git_failed")
    assert TOKEN not in answer.text


def test_a_named_source_is_fetched_at_its_revision_unless_another_is_asked_for(pctx, access, repo):
    add_git_source(pctx, access, GitSourceAdd(name="demo", url=str(repo), revision="v1"))
    assert contents(pctx, access, source_name="demo")[1]["revision"] == "v1"
    assert contents(pctx, access, source_name="demo", revision="main")[0]["train.py"] == "print(2)\n"


def test_a_fetched_repository_becomes_a_source_that_jobs_can_run(pctx, repo):
    olga = add_person(pctx, "olga2@example.org")
    client = AppClient(make_app(pctx), olga.key)
    made = client.post("/workspaces/default/sources/git", {"url": str(repo), "revision": "v1"})
    assert made.status_code == 200, made.text
    assert made.json()["files"] == 2
    job = client.post("/workspaces/default/jobs", {"name": "j", "entry": ["train.py"], "source_id": made.json()["id"]})
    assert job.json()["source"]["commit"] == git(repo, "rev-parse", "v1^{commit}")
    assert_nothing_left(pctx)


def test_registries_show_their_host_and_never_their_token(ctx, as_anna, as_berta):
    path = "/workspaces/default/registries"
    made = as_anna.put(path, {"host": "GitLab.example.org:8443", "token": f" {TOKEN}\n", "username": "oauth2"})
    assert made.json() == {"host": "gitlab.example.org:8443", "username": "oauth2"}
    assert as_anna.get(path).json() == [made.json()]
    assert as_berta.get(path).json() == []
    assert as_anna.put(path, {"host": "x", "token": "a\nb"}).status_code == 422
    assert as_anna.put(path, {"host": "x", "token": "a", "username": "a\0b"}).status_code == 422
    assert as_berta.delete(f"{path}/gitlab.example.org:8443").status_code == 404
    assert as_anna.delete(f"{path}/GitLab.example.org:8443").status_code == 204
    assert as_anna.get(path).json() == []
