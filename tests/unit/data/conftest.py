import json

import pytest

import shoal.data


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path_factory, monkeypatch):
    """A data directory and a cache of the test's own, and no job around it."""
    home = tmp_path_factory.mktemp("home")
    for name in (
        "SHOAL_URL",
        "SHOAL_JOB_TOKEN",
        "SHOAL_JOB_ID",
        "SHOAL_API_KEY",
        "DATA_LOCATION",
        "RANK",
        "WORLD_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_HOME", str(home))
    monkeypatch.setenv("SHOAL_DATA_CACHE", str(home / "stream"))
    return home


@pytest.fixture
def numbers(tmp_path):
    """Write JSON lines {"id": 0}, {"id": 1}, … over files of the given lengths; gives their folder."""

    def write(*lengths, padding=0):
        folder = tmp_path / "numbers"
        folder.mkdir()
        at = 0
        for n, length in enumerate(lengths):
            rows = (
                json.dumps({"id": i, "pad": "x" * (padding and i * 7919 % padding)}) for i in range(at, at + length)
            )
            (folder / f"part-{n:03}.jsonl").write_text("".join(f"{row}\n" for row in rows))
            at += length
        return folder

    return write


@pytest.fixture
def ids():
    """The ids a stream of `numbers` gives, in order."""

    def read(folder, **options):
        return [record["id"] for record in shoal.data.stream(folder, **options)]

    return read
