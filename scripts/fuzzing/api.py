"""Sends generated requests to every route of a real server; an answer of 5xx is a bug.

    ./scripts/soak --api SEED [--examples N]

schemathesis reads the OpenAPI document that the server serves and makes valid and invalid requests from it: N for each phase and
route. The requests are those of the owner of a private server with a job, a dataset and a sweep; they reach nothing but loopback.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from fuzzing.tools import tool
from shoal.client import Client
from shoal.client.local import owner_key, running_server
from shoal.core.jobs import JobSpec
from shoal.core.sweeps import SweepSpec
from shoal.store.pack import pack_tree
from shoal.testing.live import LiveServer, live_server

_KNOWN = {
    "workspace": "default", "job": "0", "dataset": "0", "sweep": "1", "secret": "s", "machine": "local", "user": "owner@localhost"
}  # fmt: skip
_FINE = frozenset({503, 504, 507})
"""Errors of 5xx that say that the server, its disk or another computer is not available now; they are no bugs."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./scripts/soak --api", description="Send generated requests to every route.")
    parser.add_argument("seed", type=int)
    parser.add_argument("--examples", type=int, default=20, help="requests for each phase and route (default: 20)")
    parser.add_argument("--include", help="only paths that match this regular expression")
    parser.add_argument("--results", type=Path, default=Path(".soak"))
    options = parser.parse_args()
    program = tool("schemathesis")
    options.results.mkdir(exist_ok=True)
    saved = options.results.absolute() / f"api-{options.seed}.ndjson"
    with (
        tempfile.TemporaryDirectory(prefix="shoal-api-") as folder,
        live_server(Path(folder) / "home", warm=False) as server,
    ):
        url, key = prepare(server, Path(folder))
        only = ["--include-path-regex", options.include] if options.include else []
        subprocess.run(
            [
                program, "run", str(document(url, key, Path(folder))), "--url", url, "--header", f"Authorization: Bearer {key}",
                "--checks", "not_a_server_error", "--max-examples", str(options.examples), "--seed", str(options.seed),
                "--phases", "examples,coverage,fuzzing", "--no-shrink", "--continue-on-failure", "--request-timeout", "60",
                "--suppress-health-check", "all", "--warnings", "off", "--report", "ndjson", "--report-ndjson-path", str(saved), *only,
            ],
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )  # fmt: skip
        log = server.layout.server_log.read_text()
        is_up = server.is_up
    answers, bugs = summary(saved)
    total = sum(answers.values())
    print(
        f"seed {options.seed}: {total} requests, answers {dict(sorted(answers.items()))}, {len(bugs)} of 5xx; {saved}"
    )
    for bug in sorted(bugs)[:50]:
        print(f"  {bug}")
    if not is_up:
        print("  the server ended")
    if bugs:
        (options.results / f"api-{options.seed}.log").write_text(log)
    return 0 if is_up and not bugs else 1


def document(url: str, key: str, folder: Path) -> Path:
    """Write the OpenAPI document, in which names in paths are those of things that exist, for two thirds of the requests."""
    found = httpx.get(f"{url}/api/v1/schemas/openapi", timeout=60).json()
    for path in found["paths"].values():
        for method, operation in path.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in _KNOWN:
                    names: list[Any] = [{"const": _KNOWN[parameter["name"]]}, {"const": _KNOWN[parameter["name"]]}]
                    if parameter["name"] == "workspace":
                        parameter["schema"] = names[0]
                    elif method != "delete":  # what is there stays there
                        parameter["schema"] = {"anyOf": [*names, parameter["schema"]]}
    file = folder / "openapi.json"
    file.write_text(json.dumps(found))
    return file


def prepare(server: LiveServer, folder: Path) -> tuple[str, str]:
    """Put something on the server that the requests can find; return its URL and the owner's key."""
    record = running_server(server.layout)
    if record is None:
        sys.exit("the server did not start")
    key = owner_key(server.layout, record)
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text("print('step 1/1')\n")
    with Client(record.url, key) as client:
        source = client.sources.send(pack_tree(code))[0]
        client.jobs.create(JobSpec(name="0", entry=["train.py"], source_id=source.id))
        client.datasets.push("0", pack_tree(code))
        job = JobSpec(name="1", entry=["train.py"], source_id=source.id)
        space = {"x": {"kind": "choice", "values": [1, 2]}}
        client.sweeps.create(SweepSpec.model_validate({"name": "1", "job": job, "space": space}))
        client.secrets.set("s", "value")
    return record.url, key


def summary(saved: Path) -> tuple[Counter[int], Counter[str]]:
    """Count the answers by status, and the routes that failed."""
    answers: Counter[int] = Counter()
    bugs: Counter[str] = Counter()
    for line in saved.read_text().splitlines():
        recorder = (json.loads(line).get("ScenarioFinished") or {}).get("recorder") or {}
        for interaction in (recorder.get("interactions") or {}).values():
            response = interaction.get("response")
            status = response["status_code"] if response else 0
            answers[status] += 1
            if status >= 500 and status not in _FINE:
                request = interaction["request"]
                bugs[f"{request['method']} {urlsplit(request['uri']).path}: HTTP {status}"] += 1
    return answers, bugs


if __name__ == "__main__":
    sys.exit(main())
