"""Checkpoints go to the Hugging Face Hub by Hugging Face's own client; the Hub is one of loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module

import pytest
from fake_hub import TOKEN, FakeHub, fake_hub

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointExport, CheckpointPush
from shoal.core.errors import Forbidden, InvalidSpec, MissingExtra, NotFound, Refused
from shoal.core.people import SecretSet
from shoal.server.artifacts import checkpoints, chunks, export_to_hub, exports
from shoal.server.people import secrets
from shoal.store.hashing import chunk_hash
from shoal.testing.extras import needs
from shoal.testing.server import add_person

pytestmark = needs("huggingface_hub")
FILES = {"config.json": b'{"model_type": "gpt2"}', "deep/model.safetensors": os.urandom(50_000), "empty": b""}
KEYS = {"HF_TOKEN": "hub"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True, raising=False)
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
        import_module("huggingface_hub").close_session()


@pytest.fixture
def owner(private_ctx):
    someone = add_person(private_ctx, "olga@example.org")
    for name, value in {"hub": TOKEN, "old": "hf_old"}.items():
        secrets.set_secret(private_ctx, someone.access(), SecretSet(name=name, value=value))
    entries = []
    for path, data in FILES.items():
        parts = [data[at : at + 30_000] for at in range(0, len(data), 30_000)]
        named = [(chunk_hash(part), part) for part in parts]
        private_ctx.store.put_many(named)
        chunks.own(private_ctx, someone.workspace_id, [h for h, _ in named])
        entries.append(FileEntry(path=path, size=len(data), chunks=[Chunk(hash=h, size=len(p)) for h, p in named]))
    checkpoints.push(private_ctx, someone.access(), CheckpointPush(name="model", manifest=Manifest(files=entries)))
    return someone


def export(ctx, person, destination="hf://olga/model", credentials=KEYS):
    request = CheckpointExport(destination=destination, credentials=credentials)
    return exports.export(ctx, person.access(), "model", request)


def test_all_files_arrive_in_one_commit_of_a_private_repository(private_ctx, owner, hub: FakeHub) -> None:
    done = export(private_ctx, owner)
    assert done == {"files": 3, "bytes": sum(map(len, FILES.values())), "destination": "hf://olga/model@main"}
    assert hub.repos == {"olga/model": FILES} and hub.private == {"olga/model"}
    assert hub.commits == ["Checkpoint pushed by Shoal"]
    assert not list(private_ctx.layout.server_dir.glob("hub-*"))
    export(private_ctx, owner, "hf://olga/model@v2/step-500")
    assert hub.uploads == 1, "what the Hub has is not sent again"
    assert hub.repos["olga/model"]["step-500/config.json"] == FILES["config.json"]


def test_what_fails_in_the_middle_leaves_no_commit_and_is_completed_later(private_ctx, owner, hub: FakeHub) -> None:
    hub.fail = True
    with pytest.raises(Refused):
        export(private_ctx, owner)
    assert hub.commits == [] and hub.repos == {"olga/model": {}}
    assert not list(private_ctx.layout.server_dir.glob("hub-*"))
    hub.fail = False
    export(private_ctx, owner)
    assert hub.repos == {"olga/model": FILES}


def test_a_wrong_token_is_named_and_one_is_needed(private_ctx, owner, hub: FakeHub, monkeypatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(Forbidden, match="refused the token for olga/model"):
        export(private_ctx, owner, credentials={"HF_TOKEN": "old"})
    with pytest.raises(InvalidSpec, match="needs a token"):
        export(private_ctx, owner, credentials={})
    with pytest.raises(InvalidSpec, match="HF_TOKEN is the only credential"):
        export(private_ctx, owner, credentials={"AWS_SECRET_ACCESS_KEY": "hub"})
    with pytest.raises(NotFound):
        export(private_ctx, owner, credentials={"HF_TOKEN": "none"})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    export(private_ctx, owner, credentials={})
    assert hub.repos == {"olga/model": FILES}


def test_a_shared_server_uses_no_token_of_its_own(ctx, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(InvalidSpec, match="needs a token"):
        export_to_hub.hub_writer(ctx, export_to_hub.parse_hub_target("hf://a/b"), {})


@pytest.mark.parametrize("text", ["hf://a", "hf://datasets/a/b", "hf://../b/c", "hf://a/b/../c", "hf:///a/b"])
def test_what_is_no_model_of_the_hub_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        export_to_hub.parse_hub_target(text)


def test_a_missing_client_is_said_with_the_command(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra) as caught:
        export_to_hub.check_client()
    assert caught.value.hint == "pip install huggingface_hub"
