"""Arguments object for scripts that have none."""

from typing import Any


class MockArg:
    """Arguments object with the given attributes; all others are None."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
