"""Configuration files of Hugging Face models, which `from_pretrained` needs beside the weights. Standard library only."""

from __future__ import annotations

import json
from typing import Any


def hugging_face_files(model: Any) -> dict[str, str]:
    """Return the contents of config.json and generation_config.json; {} for other models."""
    files: dict[str, str] = {}
    for name, attribute in (("config.json", "config"), ("generation_config.json", "generation_config")):
        write = getattr(getattr(model, attribute, None), "to_json_string", None)
        if not callable(write):
            continue
        try:
            said = json.loads(write())
        except (TypeError, ValueError):
            continue
        if name == "config.json":
            said["architectures"] = said.get("architectures") or [_class_name(model)]
        files[name] = json.dumps(said, indent=2) + "\n"
    return files if "config.json" in files else {}


def _class_name(model: Any) -> str:
    """Return the name of the model's own class. `fully_shard` makes a subclass of it and of FSDPModule."""
    kinds = type(model).__mro__
    wrapped = any(kind.__name__ == "FSDPModule" for kind in kinds)
    return next(k.__name__ for k in kinds if not (wrapped and k.__name__.startswith("FSDP")))
