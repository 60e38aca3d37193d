"""Arguments of NetMind's monitor: values that its website filled in, if the command line does not set them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

UPLOAD_EVERY_S = 1800.0
"""Seconds between uploads, as on NetMind. The guide's default is None, which its monitor compares with a number."""


def mend(module: ModuleType) -> None:
    """Patch transformers.hf_argparser so that it fills in missing values."""
    parser: Any = vars(module)["HfArgumentParser"]
    parse = parser.parse_args_into_dataclasses

    def parse_and_fill_in(self: Any, *args: Any, **options: Any) -> Any:
        groups = parse(self, *args, **options)
        for group in groups:
            if getattr(group, "store_checkpoints", False) and getattr(group, "upload_interval", 0) is None:
                group.upload_interval = UPLOAD_EVERY_S
        return groups

    parser.parse_args_into_dataclasses = parse_and_fill_in
