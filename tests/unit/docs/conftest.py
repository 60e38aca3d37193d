import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs"))  # where the generator lives


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def reference(root: Path) -> dict[str, str]:
    """The pages of docs/reference, by name without the suffix."""
    return {page.stem: page.read_text(encoding="utf-8") for page in (root / "docs/reference").glob("*.md")}
