import pytest

from shoal.testing.live import live_server


def pytest_collection_modifyitems(items):
    for item in items:
        if "/integration/" in str(item.path):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """One real server for a file of tests; its agents start by their command lines if the file says `PRELOADS = False`."""
    warm = getattr(request.module, "PRELOADS", True)
    with live_server(tmp_path_factory.mktemp("home"), slots=4, warm=warm) as server:
        yield server


@pytest.fixture
def own_server(request, tmp_path):
    """A server of the test's own, to be killed."""
    with live_server(tmp_path / "home", slots=4, warm=getattr(request.module, "PRELOADS", True)) as server:
        yield server


@pytest.fixture
def code(tmp_path):
    """Write files of a source: `code({"train.py": "…"})` gives their folder."""

    def write(files):
        folder = tmp_path / "code"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write
