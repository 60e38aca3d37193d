"""The light copies of the wire schemas say exactly what the schemas say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.agent import wire
from shoal.core import agents


@pytest.mark.parametrize("name", ["Launch", "Mount", "PeerNodes", "JoinReply", "BeatReply"])
def test_every_field_and_default_is_that_of_the_schema(name: str) -> None:
    light, schema = getattr(wire, name), getattr(agents, name)
    assert set(light.__annotations__) == set(schema.model_fields)
    for field, info in schema.model_fields.items():
        if info.is_required():
            assert field not in vars(light), field
        else:
            assert vars(light)[field] == info.get_default(), field


def test_constants_are_those_of_the_schema() -> None:
    assert wire.TOKEN_HEADER == agents.TOKEN_HEADER
    assert wire.BEAT_INTERVAL_S == agents.BEAT_INTERVAL_S


def test_a_launch_survives_the_way_through_its_file(tmp_path: Path) -> None:
    launch = agents.Launch(
        job_id="job_1",
        job_name="j",
        attempt_id="att_1",
        attempt=2,
        node=1,
        token="t",
        url="http://x",
        work_dir="/w",
        cache_dir="/c",
        python="/p",
        machine="m",
        slots=[0, 3],
    )
    path = tmp_path / "launch.json"
    path.write_text(launch.model_dump_json())
    assert {k: getattr(wire.Launch.read(path), k) for k in agents.Launch.model_fields} == launch.model_dump()


def test_a_launch_file_that_lacks_something_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({"job_id": "job_1"}))
    with pytest.raises(ValueError, match="attempt_id"):
        wire.Launch.read(path)


def test_fields_a_newer_server_adds_are_ignored() -> None:
    assert not hasattr(wire.BeatReply({"stop": True, "dance": 1}), "dance")


def test_an_agent_starts_without_pydantic_httpx_and_the_like() -> None:
    code = "import shoal.agent.main, shoal.agent.node.node, shoal.store.codec, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"pydantic", "httpx", "http.client", "psutil", "torch", "asyncio", "dataclasses"}
