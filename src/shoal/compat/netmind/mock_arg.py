"""An arguments object for scripts that have none."""

from typing import Any


class MockArg:
    """A bag of attributes, where a script wants an arguments object; what was not set is None."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
