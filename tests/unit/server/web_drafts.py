"""Helpers for tests of the new-job page: a job with every setting, the fields a browser sends, the preview."""

from html.parser import HTMLParser

from shoal.agent.devices.device import Device
from shoal.core.artifacts import Manifest
from shoal.core.checkpoints import CheckpointPush
from shoal.core.datasets import DatasetBegin
from shoal.core.jobs import JobSpec
from shoal.core.people import SecretSet
from shoal.engines.base import Machine
from shoal.server.artifacts import checkpoints, datasets
from shoal.server.jobs import service as jobs
from shoal.server.people import secrets
from shoal.testing.server import IdleEngine, add_source

HTMX = {"HX-Request": "true"}
NEW = "/w/default/jobs/new"


class TwoMachines(IdleEngine):
    def capacity(self):
        return [Machine(name=name, kind="cpu", slots=8) for name in ("one", "two")]


class TwoGpuMachines(IdleEngine):
    def capacity(self):
        gpus = tuple(
            Device(kind="cuda", index=i, model="NVIDIA H100 80GB HBM3", memory=85_520_809_984) for i in range(8)
        )
        return [Machine(name=n, kind="cuda", slots=8, inventory=gpus, labels={"rack": "a"}) for n in ("one", "two")]


def full_spec(source_id, checkpoint="ckpt_x"):
    """No setting as it usually is: a new one that is not here fails `test_no_setting_is_forgotten`."""
    return JobSpec(
        name="full", entry=["train.py", "--lr", "3e-4", "--name=a b", "pos", "--fp16"], source_id=source_id,
        datasets=["more", "words@1"], checkpoint=checkpoint, min_nodes=2, max_nodes=3, grow=True, accels=2, env={"A": "b c"},
        secrets={"TOKEN": "thing"}, max_restarts=0, priority=-5, time_limit_s=5400, stall_timeout_s=0, on_stall="fail", expected_s=7200, batch="night", budget="8h",
        exclude=["two"], prefer=["one"], keep_last=2, keep_best="-acc", launcher="torchrun", device="any", gpu="H100", gpu_memory_gb=80.0, labels={"rack": "a"},
        allow_cpu=True, allow_torch_change=True, memory="16G", cpus=2.5, disk="100G", shm="8GiB",
        grace_s=300, one_device_per_worker=True, engine_options={"partition": "long", "qos": "high"},
        mounts=["s3://bucket/images:/images", "s3://bucket/words:/words:ro"], after=["prepare:ended"], mixed_models=True,
    )  # fmt: skip


def fill(ctx, anna):
    """Create what a full specification refers to; return the id of a checkpoint."""
    ctx.engine = TwoGpuMachines()
    for name in ("words", "more"):
        begun = datasets.begin(ctx, anna.access(), DatasetBegin(name=name))
        datasets.commit(ctx, anna.access(), begun.id, Manifest(files=[]))
    secrets.set_secret(ctx, anna.access(), SecretSet(name="thing", value="v"))
    jobs.submit(ctx, anna.access(), JobSpec(name="prepare", entry=["train.py"], source_id=add_source(ctx, anna)))
    return checkpoints.push(ctx, anna.access(), CheckpointPush(name="c", manifest=Manifest(files=[]))).checkpoint.id


def preview(browser, **form):
    answer = browser.post(f"{NEW}/preview", form, headers=HTMX)
    assert answer.status_code == 200, answer.text
    return answer.text


def form_of(text):
    """Return the fields that a browser would send for the form of a page."""
    fields, state = {}, {"select": None, "inside": False, "template": 0}

    class Reader(HTMLParser):
        def handle_starttag(self, tag, given):
            a = dict(given)
            if tag == "form" and a.get("id") == "new-job":
                state["inside"] = True
            state["template"] += tag == "template"
            if not state["inside"] or state["template"]:
                return
            if tag == "select":
                state["select"] = a["name"]
            if tag == "option" and state["select"]:
                state["text"], state["option"] = "", a
            if tag == "input" and "name" in a and (a.get("type") not in ("radio", "checkbox") or "checked" in a):
                fields.setdefault(a["name"], []).append(a.get("value", ""))

        def handle_data(self, data):
            state["text"] = state.get("text", "") + data

        def handle_endtag(self, tag):
            state["template"] -= tag == "template"
            option = state.get("option")
            if tag == "option" and option is not None and state["select"]:
                value = option.get("value", state["text"])
                if "selected" in option or (state["select"] not in fields and "disabled" not in option):
                    if state.get("chosen") == state["select"]:
                        fields[state["select"]].pop()
                    fields.setdefault(state["select"], []).append(value)
                    state["chosen"] = state["select"]
                state["option"] = None
            if tag == "select":
                state["select"] = state["chosen"] = None
            if tag == "form":
                state["inside"] = False

    Reader().feed(text)
    return fields
