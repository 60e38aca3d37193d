"""Writing of one sharded checkpoint by all ranks: each writes its part, rank 0 commits all of them at once.

The ranks may share one folder, or have one per node. In each folder its first rank, the leader, renames it.
"""

# Why this is safe: everything is written and synced in `.tmp-step-…-SESSION-N`, a name that no other save uses. A rank stores
# what it has written only after the sync. Rank 0 waits for all ranks, checks that every tensor is complete, writes the lists,
# and says "go". Then the leaders of other folders rename theirs; rank 0 waits for them and renames its own last, the only one
# with shoal.json. A crash before that rename leaves folders without shoal.json, which a resume ignores; a part that was left
# by an earlier attempt has another session in its name, so that no checkpoint is put together from two saves.

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import Refused
from shoal.sdk.saving import layout
from shoal.sdk.saving.archive import Output, write_archive
from shoal.sdk.saving.extras import move_into
from shoal.sdk.saving.peers import Peers
from shoal.sdk.saving.shards import INDEX, METADATA, SKELETON, SUFFIX, Split, make_index, pickled_metadata, write_part

_PATIENCE_S = 3600.0
"""Seconds to wait for the part of another rank. A rank that has died ends the run long before."""


class Places(NamedTuple):
    """The folders of the ranks."""

    directory: Path
    """Folder in which this rank writes."""
    leaders: tuple[int, ...]
    """Rank that renames the folder, for each rank. Ranks with the same leader share a folder."""
    rank: int

    @property
    def leads(self) -> bool:
        return self.leaders[self.rank] == self.rank

    @property
    def others(self) -> list[int]:
        """Leaders of the folders that rank 0 does not write to."""
        return sorted(set(self.leaders) - {0})


def find_places(directory: Path, rank: int, session: str, gather: Callable[[Any], list[Any]]) -> Places:
    """Find out which ranks share a folder. Collective.

    Args:
        directory: Folder of this rank. That of rank 0 is used instead by ranks that see it.
        rank: This rank.
        session: Identifier of the attempt.
        gather: Returns the values that all ranks pass, in the order of the ranks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    own = directory / f".rank-{session}-{rank}"
    own.touch()
    try:
        folders = [Path(name) for name in gather(str(directory.absolute()))]
        if (folders[0] / f".rank-{session}-0").exists():
            directory, leader = folders[0], 0
        else:
            leader = next(i for i in range(len(folders)) if (directory / f".rank-{session}-{i}").exists())
        return Places(directory, tuple(gather(leader)), rank)
    finally:
        with contextlib.suppress(OSError):
            own.unlink()


class Writing(NamedTuple):
    """One save, as one rank takes part in it."""

    step: int
    number: str
    """Identifier of the save, the same on every rank."""
    session: str
    split: Split
    rng: Any
    about: Mapping[str, Any]

    def write(self, files: Mapping[str, Any], places: Places, peers: Peers) -> Path | None:
        """Write this rank's part of the copied files. Return the checkpoint on rank 0, once it is complete; else None."""
        final = places.directory / layout.name_of(self.step)
        partial = places.directory / f".tmp-{final.name}-{self.session}-{self.number}"
        said: dict[str, Any] = {"rng": self.rng}
        failed: Exception | None = None
        try:
            partial.mkdir(parents=True, exist_ok=True)
            said["part"] = write_part(partial / self._file(places), files["part"], self.split)
        except Exception as error:
            failed, said["error"] = error, f"{type(error).__name__}: {error}"
        if places.rank == 0:
            return self._commit(files, said, failed, partial, final, places, peers)
        peers.store_state(self.number, said)
        try:
            if places.leads and (stay := json.loads(peers.wait_until_complete(self.number, _PATIENCE_S))):
                layout.commit(partial, final)
                peers.moved(self.number)
                _prune(places.directory, stay)
        finally:
            if places.leads:
                shutil.rmtree(partial, ignore_errors=True)
        if failed is not None:
            raise failed
        return None

    def _commit(
        self,
        files: Mapping[str, Any],
        own: Mapping[str, Any],
        failed: Exception | None,
        partial: Path,
        final: Path,
        places: Places,
        peers: Peers,
    ) -> Path:
        stay: list[str] = []
        try:
            said = peers.gather(self.number, own, _PATIENCE_S)
            if failed is not None:
                raise failed
            for rank, one in enumerate(said):
                if "error" in one:
                    raise Refused(f"worker {rank} could not write its part: {one['error']}")
            parts = [one["part"] for one in said]
            training = {**files["training.pt"], "rng": [one["rng"] for one in said]}
            listed = _write_lists(partial, files[SKELETON], training, make_index(parts, self.split.aliases))
            elsewhere: dict[str, Any] = {}
            for part, leader in zip(parts, places.leaders, strict=True):
                (listed if leader == 0 else elsewhere)[part["file"]] = {k: part[k] for k in ("size", "blake2b")}
            move_into(places.directory, partial)
            stay = [path.name for path in layout.saved_in(places.directory) if (path / layout.ABOUT).exists()]
            peers.store_complete(self.number, json.dumps([*stay, final.name]))
            for leader in places.others:
                peers.await_moved(self.number, leader, _PATIENCE_S)
            layout.write_about(partial, {**self.about, "files": listed, "elsewhere": elsewhere}, sharded=True)
            layout.commit(partial, final)
        except BaseException:
            if not stay:
                with contextlib.suppress(Exception):
                    peers.store_complete(self.number, "[]")
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return final

    def _file(self, places: Places) -> str:
        # With several folders no two saves use the same names, so that parts of two saves are never taken for one.
        several = bool(places.others)
        return f"__{places.rank}_{f'{self.session}-{self.number}' if several else 0}{SUFFIX}"


def _write_lists(partial: Path, skeleton: Any, training: Any, index: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of rank 0 that say what the parts are. Return their sizes and hashes."""
    listed = {
        SKELETON: write_archive(partial / SKELETON, skeleton),
        "training.pt": write_archive(partial / "training.pt", training),
    }
    for name, data in ((INDEX, json.dumps(index).encode()), (METADATA, pickled_metadata(index))):
        with Output(partial / name) as out:
            out.write(data)
            listed[name] = out.finish()
    return listed


def _prune(directory: Path, stay: Sequence[str]) -> None:
    """Remove the parts of checkpoints that rank 0 no longer has."""
    for path in layout.saved_in(directory):
        if path.name not in stay:
            layout.discard(path)
