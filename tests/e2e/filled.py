"""A server's data directory with a bit of everything in it: a workspace as people have them, and one where every text is hostile.

Written through the services, before a server runs on it. Names that the services refuse are planted in the database.
"""

from __future__ import annotations

import functools
import json
import math
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from corpus import ANSI, CORPUS, HOSTILE, NAME, SVG, TRAIN, picture
from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from web_run import Run, put
from web_swarms import add_swarm
from web_sweeps import SPACE, add_sweep

from shoal.core.artifacts import Manifest
from shoal.core.bugs import BugCommit
from shoal.core.charts import NoteSave
from shoal.core.checkpoints import CheckpointFacts, CheckpointPush
from shoal.core.datasets import DatasetBegin
from shoal.core.ids import new_id
from shoal.core.people import ProfileChange, Role, SecretSet, WorkspaceInvite
from shoal.core.runs import RunChange
from shoal.core.schema import utcnow
from shoal.core.settings import Layout, ServerSettings
from shoal.core.swarm_views import InvitationCreate
from shoal.core.sweeps import Choice
from shoal.server.artifacts import checkpoints, datasets
from shoal.server.charts import marks
from shoal.server.context import Context
from shoal.server.jobs import bug_capsules
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.datasets import Dataset
from shoal.server.models.jobs import Attempt, Event, Job, Node
from shoal.server.models.sweeps import Sweep
from shoal.server.models.users import MailCode, User
from shoal.server.models.workspaces import Workspace
from shoal.server.people import invitations as workspace_invitations
from shoal.server.people import recovery, secrets, sign_in
from shoal.server.people.keys import new_token
from shoal.server.people.sign_in import start_session
from shoal.server.policy import hash_token
from shoal.server.run import open_context
from shoal.server.runs import changes
from shoal.server.swarms import invitations as swarm_invitations
from shoal.testing.server import Person, add_key, add_member, add_person, make_context

DENSE = 3000
"""Points of baseline's metric `dense`, more than a chart shows at once."""


def dense(step: int) -> float:
    return math.sin(step / 40) + 0.3 * math.sin(step * 12.9898)


@dataclass(slots=True)
class Filled:
    session: str
    """A token of the owner's, for the cookie."""
    mallory: str
    """One of hers: the hostile texts are of her workspace, and of herself."""
    hostile: str
    """The id of that workspace."""
    jobs: dict[str, str] = field(default_factory=dict)
    datasets: dict[str, str] = field(default_factory=dict)
    sweep: str = ""
    """The hostile one."""
    swarm: str = ""
    """The hostile one."""
    join: str = ""
    """The token of an invitation to the other."""
    invite: str = ""
    """The path of an invitation to the workspace as people have them."""
    recover: str = ""
    """The path at which a lost password is replaced."""
    base: str = ""
    """Set once a server runs."""

    @property
    def bad(self) -> str:
        return f"/w/{self.hostile}"


def fill(home: Path) -> Filled:
    open_context(Layout(home), ServerSettings(slots=4)).db.close()
    ctx = make_context(home)  # the tables are there, so is the owner; writes need not be durable
    try:
        with ctx.db.read() as session:
            owner = session.scalars(select(User)).one()
            workspace = session.scalars(select(Workspace)).one()
        me = Person(owner.id, owner.email, workspace.id, "", "key_none")
        mallory = add_person(ctx, "mallory@example.org", is_admin=True)
        made = Filled(sign_in_as(ctx, me), sign_in_as(ctx, mallory), mallory.workspace_id)
        _usual(ctx, me, made)
        _hostile(ctx, mallory, made)
        return made
    finally:
        ctx.db.close()


def sign_in_as(ctx: Context, person: Person) -> str:
    return ctx.db.write(lambda s: start_session(s, s.get_one(User, person.user_id))).token


def _usual(ctx: Context, me: Person, made: Filled) -> None:
    files = {
        "train.py": TRAIN,
        "model/net.py": b"import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n",
        "README.md": b"# Digits\n",
    }
    given = {"files": files, "origin": {"path": "~/digits"}, "env": {"OMP_NUM_THREADS": "2"}, "accels": 2}
    for name, lr, end in (("baseline", 0.01, "succeeded"), ("wider", 0.03, "failed"), ("longer", 0.003, "stopped")):
        run = Run(ctx, me, name, entry=["train.py", "--lr", str(lr)], **given)
        made.jobs[name] = run.id
        _train(run, lr)
        if name == "baseline":
            run.steps(0, DENSE, dense=dense)
        if name == "longer":
            _train(run.attempt(), lr, first=150)
        run.become("starting", "running", end, reason="KeyError: 'label' on rank 1" if end == "failed" else None)
        ctx.db.write(functools.partial(past, run.id, 1.0 if end == "succeeded" else 0.62))
        if name == "wider":
            _capsule(run, {"x": "tensor 32 × 784 float32"}, "label", "KeyError")
    written = {
        "title": "Baseline, cosine schedule",
        "note": "the reference for all others",
        "description": "Trained on the digits\nof last spring.",
    }
    about = RunChange(jobs=[made.jobs["longer"]], add_tags=["ablation", "lr"], starred=True, **written)
    changes.change(ctx, me.access(), about)
    marks.add_note(ctx, me.access(), "longer", NoteSave(step=120, text="the schedule ends here"))
    add_sweep(ctx, me, "lr-and-width", trials=60, job_id=made.jobs["baseline"])
    add_swarm(ctx, me, "reef", rounds=60, state="stopped", reason="stopped by me@example.org", public=True)
    made.join = swarm_invitations.create(ctx, me.access(), "reef", InvitationCreate()).token
    made.invite = workspace_invitations.create(ctx, me.access(), WorkspaceInvite()).path
    for step in (100, 200, 300):
        _checkpoint(ctx, me, f"step-{step}", step, job=(made.jobs["baseline"], "baseline"))
    waits = Run(ctx, me, "waits", **given)
    made.jobs["waits"] = waits.id
    ctx.db.write(functools.partial(_wait, waits.id))
    made.datasets["words"] = _dataset(ctx, me, "words", {
        "digits/one.png": picture(), "train.csv": b"id,text,label\n" + b"".join(b"%d,some words,%d\n" % (n, n % 3) for n in range(300)),
        "about.json": b'{"rows": 300, "labels": ["a", "b", "c"]}', "notes.txt": b"Collected in spring.\n", **_parquet(),
    })  # fmt: skip
    secrets.set_secret(ctx, me.access(), SecretSet(name="HF_TOKEN", value="hf_abcdef"))
    add_key(ctx, me, "laptop")
    anna = add_person(ctx, "anna@example.org")
    add_member(ctx, me.workspace_id, anna, Role.MEMBER)
    code = new_token(recovery.CODE_PREFIX)
    ctx.db.write(functools.partial(_mail_code, anna, code))
    made.recover = f"/recover/{code}"


def _hostile(ctx: Context, me: Person, made: Filled) -> None:
    files = {f"{n:02} {text.replace('/', '∕')}.py": text.encode() for n, text in enumerate(CORPUS[:6])}
    files |= {
        "train.py": f"print('''{HOSTILE}''')\n# {CORPUS[1]}\n".encode(),
        "a.svg": SVG,
        "a.html": b"<script>ran(32)</script>",
    }
    for name in ("bad", "worse"):
        run = Run(
            ctx, me, name, files=files, origin={"path": HOSTILE, "url": "javascript:ran(40)", "commit": HOSTILE},
            entry=["train.py", f"--{name}", HOSTILE, *CORPUS], env={"TEXT": HOSTILE + name},
        )  # fmt: skip
        made.jobs[name] = run.id
        run.config(**{HOSTILE: HOSTILE + name, "list": CORPUS, "deep": {HOSTILE: [HOSTILE]}})
        run.environment(HOSTILE, **{HOSTILE: HOSTILE})
        run.log(*CORPUS, *(raw for raw, _ in ANSI), f"Traceback (most recent call last): {HOSTILE}")
        for step in range(5):
            run.send("metric", {"k": "s", "i": step, "v": {HOSTILE: float(step), "loss": 1.0 / (1 + step)}})
        run.send("metric", {"k": "e", "i": 4, "v": {"verdict": HOSTILE, CORPUS[1]: 1.0}})
        changes.change(ctx, me.access(), RunChange(jobs=[run.id], title=HOSTILE, note=HOSTILE, description=HOSTILE))
        marks.add_note(ctx, me.access(), run.id, NoteSave(step=2, text=HOSTILE[:1000]))
        run.show(HOSTILE, picture(), step=1)
        run.show(CORPUS[2], SVG, mime="image/svg+xml", type="figure")
        run.show(CORPUS[3], b"<script>ran(50)</script>", mime="text/html", type="figure")
        figure = {
            "data": [{"x": [1, 2], "y": [3, 4], "name": HOSTILE, "type": "scatter"}],
            "layout": {"title": {"text": HOSTILE}},
        }
        run.show("plotly", json.dumps(figure).encode(), mime="application/vnd.plotly.v1+json", type="figure")
        run.table("table", [HOSTILE, "n"], [[text, n] for n, text in enumerate(CORPUS)])
        run.become("starting", "running", "failed", reason=HOSTILE)
        ctx.db.write(functools.partial(past, run.id, 0.5))
        _capsule(run, {HOSTILE: HOSTILE}, HOSTILE, HOSTILE[:100])
    space = SPACE | {"text": Choice(values=CORPUS), HOSTILE: Choice(values=[HOSTILE, 1])}
    made.sweep = add_sweep(ctx, me, "bad-sweep", job_id=made.jobs["bad"], space=space, metric=HOSTILE)
    made.swarm = add_swarm(
        ctx, me, "bad-swarm", state="stopped", reason=HOSTILE, entry=["train.py", HOSTILE],
        peers=[(HOSTILE, "training", 10, {"device": HOSTILE})],
    )  # fmt: skip
    _checkpoint(ctx, me, "ckpt", 4, job=(made.jobs["bad"], "bad"), model=HOSTILE)
    data = {f"{n:02} {text.replace('/', '∕')}.txt": text.encode() for n, text in enumerate(CORPUS)}
    rows = "a,b\n" + "".join(f'"{text.replace(chr(34), chr(34) * 2)}",{n}\n' for n, text in enumerate(CORPUS))
    data |= {"table.csv": rows.encode(), "page.html": b"<script>ran(60)</script>", "a.svg": SVG, "fake.png": SVG}
    data |= {"texts.json": json.dumps({HOSTILE: CORPUS}).encode()}
    made.datasets["bad"] = _dataset(ctx, me, "bad-data", data)
    secrets.set_secret(ctx, me.access(), SecretSet(name="SOME", value="a secret"))
    add_key(ctx, me, HOSTILE)
    sign_in.change_profile(ctx, me.access().principal, ProfileChange(name=HOSTILE))

    def plant(session: Any) -> None:
        """Insert data that only a bug elsewhere could let in."""
        session.get_one(Workspace, me.workspace_id).name = NAME
        session.get_one(Job, made.jobs["worse"]).name = NAME
        sweep = session.get_one(Sweep, made.sweep)
        sweep.name, sweep.reason = NAME, HOSTILE
        session.get_one(Dataset, made.datasets["bad"]).name = NAME
        for row in session.scalars(select(Event).where(Event.job_id == made.jobs["bad"])):
            row.message = HOSTILE
        for row in session.scalars(select(Checkpoint).where(Checkpoint.workspace_id == me.workspace_id)):
            row.name = HOSTILE

    ctx.db.write(plant)


def _train(run: Run, lr: float, *, first: int = 0) -> None:
    steps, now = range(first, 300), time.time() - 1800
    wave = {i: math.sin(i * 12.9898 + lr * 999) for i in steps}
    values = {
        "train/loss": lambda i: 2.3 * math.exp(-i * lr) + 0.2 + 0.08 * wave[i],
        "train/grad_norm": lambda i: 1.5 + 0.7 * abs(wave[i]),
        "lr": lambda i: lr * (1 - i / 300),
        "tokens/s": lambda i: 41_000 + 900 * wave[i],
    }
    run.config(lr=lr, batch_size=64, model={"depth": 4, "width": 256})
    run.send(
        "metric", *({"t": now + i * 4, "k": "s", "i": i, "v": {k: f(i) for k, f in values.items()}} for i in steps)
    )
    run.send(
        "metric", *({"t": now + i * 4, "k": "e", "i": i, "v": {"accuracy": 1 - math.exp(-i * lr)}} for i in steps[::25])
    )
    lines = [
        f"step {i:>4}  loss {values['train/loss'](i):.4f}  \x1b[32m{values['tokens/s'](i):,.0f} tokens/s\x1b[0m"
        for i in steps
    ]
    lines += [
        "\x1b[33mUserWarning\x1b[0m: the loader is slow",
        "Traceback (most recent call last):",
        "KeyError: 'label'",
    ]
    run.send("log", *({"t": now + n * 4, "r": n % 2, "e": "out", "m": text} for n, text in enumerate(lines)))
    run.environment("3.11.2", torch="2.6.0", numpy="2.1.0")
    run.send("system", *(
        {"t": now + n * 5, "cpu": 150 + 30 * math.sin(n / 5), "rss": (2 << 30) + (n << 20), "ram": 9 << 30, "ram_total": 16 << 30,
         "load": 2.1, "disk_free": (90 << 30) - (n << 22), "gpu": [{"i": 0, "util": 88 + 8 * math.sin(n / 3), "mem": 11 << 30, "mem_total": 24 << 30}]}
        for n in range(240)
    ))  # fmt: skip
    for step in (100, 200, 299):
        run.show("samples", picture(step), step=step)
        bars = {
            "edges": list(range(13)),
            "counts": [abs(6 - n) * step % 97 for n in range(12)],
            "total": step,
            "mean": 6.0,
            "std": 2.0,
        }
        run.show(
            "weights",
            json.dumps(bars).encode(),
            mime="application/vnd.shoal.histogram+json",
            type="histogram",
            step=step,
        )
        said = {"texts": [f"Once upon a time, at step {step}, there was a net.", "The loss fell and fell."]}
        run.show("stories", json.dumps(said).encode(), mime="application/vnd.shoal.texts+json", type="text", step=step)
    run.table(
        "mistakes", ["text", "wanted", "given"], [[f"some words, number {n}", n % 3, (n + 1) % 3] for n in range(12)]
    )


def past(job_id: str, fraction: float, session: Any) -> None:
    """Set times as if the job had run for twenty minutes and ended a while ago."""
    job, now = session.get_one(Job, job_id), utcnow()
    job.progress = {"step": int(300 * fraction), "total": 300, "unit": "step", "fraction": fraction, "at": time.time()}
    moments = [now - timedelta(minutes=minutes) for minutes in (34, 33.9, 33.5, 13.2)]
    job.created_at, job.started_at, job.ended_at = moments[0], moments[1], moments[3]
    events = session.scalars(select(Event).where(Event.job_id == job_id).order_by(Event.seq)).all()
    for event, moment in zip(events, moments, strict=False):
        event.at = moment
    for attempt in session.scalars(select(Attempt).where(Attempt.job_id == job_id)):
        attempt.state, attempt.result = "ended", job.state
        attempt.created_at, attempt.started_at, attempt.ended_at = moments[1:]
        for node in session.scalars(select(Node).where(Node.attempt_id == attempt.id)):
            node.state, node.final, node.machine, node.slots, node.exit_code = "exited", True, "local", [0, 1], 0


def _wait(job_id: str, session: Any) -> None:
    """Create attempts whose nodes never start."""
    job = session.get_one(Job, job_id)
    job.spec, job.attempts = job.spec | {"min_nodes": 64, "max_nodes": 64}, 0
    session.execute(delete(Attempt).where(Attempt.job_id == job_id))


def _capsule(run: Run, variables: dict[str, str], message: str, error: str) -> None:
    about = {
        "error": {"type": error, "message": message, "traceback": f"Traceback (most recent call last):\n{message}"},
        "locals": variables, "versions": {"python": "3.11.2", "torch": message},
        "batch": [{"path": message, "shape": [4, 3], "dtype": "float32", "min": -1.0, "max": 2.5, "non_finite": 0}],
        "non_finite": [message],
    }  # fmt: skip
    entry = put(run.ctx, run.person, "capsule.json", json.dumps(about).encode())
    bug_capsules.commit(run.ctx, run.who, BugCommit(
        rank=1, n=0, t=time.time(), step=186, seen=11_904, name="step-000000186-rank-1", error=error, message=message,
        where=f"train.py:31 in {message}", manifest=Manifest(files=[entry]),
    ))  # fmt: skip


def _checkpoint(ctx: Context, me: Person, name: str, step: int, *, job: tuple[str, str], model: str = "gpt2") -> None:
    facts = CheckpointFacts(step=step, train_loss=1 / step, eval_loss=2 / step, model=model)
    manifest = Manifest(files=[put(ctx, me, "model.safetensors", f"weights {name} {job}".encode() * 1000)])
    made = checkpoints.push(ctx, me.access(), CheckpointPush(name=name, manifest=manifest, facts=facts)).checkpoint

    def work(session: Any) -> None:
        row = session.get_one(Checkpoint, made.id)  # type: ignore[union-attr]
        row.job_id, row.job_name, row.attempt, row.node, row.kept = job[0], job[1], 1, 0, step == 300

    ctx.db.write(work)


def _dataset(ctx: Context, me: Person, name: str, files: dict[str, bytes]) -> str:
    begun = datasets.begin(ctx, me.access(), DatasetBegin(name=name))
    entries = [put(ctx, me, path, files[path]) for path in sorted(files)]
    made = datasets.commit(ctx, me.access(), begun.id, Manifest(files=entries)).dataset
    assert made is not None
    return made.id


def _parquet() -> dict[str, bytes]:
    try:
        import io

        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return {}
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"id": list(range(500)), "text": [f"some words {n}" for n in range(500)]}), out)
    return {"part-0.parquet": out.getvalue()}


def _mail_code(person: Person, code: str, session: Session) -> None:
    now = utcnow()
    session.add(
        MailCode(
            id=new_id("mail"), user_id=person.user_id, purpose=recovery.RESET, email=person.email,
            code_hash=hash_token(code), created_at=now, expires_at=now + timedelta(days=1),
        )
    )  # fmt: skip
