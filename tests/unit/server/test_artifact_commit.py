"""Commits on the server survive a garbage collection that removes chunks between their upload and the commit."""

import pytest
from sqlalchemy import select

from shoal.core.artifacts import SourceCommit
from shoal.core.errors import NotFound, Refused
from shoal.server.artifacts import chunks, sources
from shoal.server.artifacts import commit as artifact_commit
from shoal.server.models.sources import Source
from shoal.store.pack import pack_tree
from shoal.testing.server import add_person


@pytest.fixture
def access(private_ctx):
    return add_person(private_ctx, "anna@example.org").access()


@pytest.fixture
def packed(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print('trains')")
    return pack_tree(tmp_path / "code")


@pytest.fixture
def collected(private_ctx, monkeypatch):
    """`collected(n)`: the store refuses the next n manifests, as it does when one of their chunks has been collected."""
    put = private_ctx.store.put_manifest
    left = [0]

    def refuse_some(manifest):
        if left[0]:
            left[0] -= 1
            raise NotFound("1 chunks of the manifest are not in the store yet.", details={"missing": ["00" * 32]})
        return put(manifest)

    monkeypatch.setattr(private_ctx.store, "put_manifest", refuse_some)
    return lambda times: left.__setitem__(0, times)


def rows(ctx):
    with ctx.db.read() as session:
        return list(session.scalars(select(Source.id)))


def test_a_commit_names_what_is_missing_and_records_nothing(private_ctx, access, packed):
    view = sources.commit(private_ctx, access, SourceCommit(manifest=packed.manifest))
    assert len(view.missing) == 1 and rows(private_ctx) == []


def test_files_of_this_machine_are_stored_again_after_a_collection(private_ctx, access, packed, collected, tmp_path):
    sent = []
    monitor = artifact_commit.upload
    collected(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifact_commit, "upload", lambda *a, **k: sent.append(monitor(*a, **k)))
        view = sources.from_tree(private_ctx, access, tmp_path / "code", {})
    assert rows(private_ctx) == [view.id] and len(sent) == 3
    assert not chunks.missing(private_ctx, access.workspace_id, [c.hash for c in packed.manifest.files[0].chunks])


def test_a_store_that_keeps_losing_chunks_is_said_and_nothing_is_recorded(
    private_ctx, access, collected, packed, tmp_path
):
    collected(100)
    with pytest.raises(Refused, match="keeps losing chunks"):
        sources.from_tree(private_ctx, access, tmp_path / "code", {})
    assert rows(private_ctx) == []


def test_another_thing_that_is_not_found_ends_it(private_ctx, access, packed):
    def commit():
        raise NotFound("There is no such dataset.")

    with pytest.raises(NotFound, match="no such dataset"):
        artifact_commit.store_packed(private_ctx, access.workspace_id, packed, commit)
