"""`shoal swarm create`: pack the code, make the swarm, print how to join it."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Group, Parameter

from shoal.cli._job_flags import CodeFlags, check_entry_name, refuse_stray_words, submitting
from shoal.cli._output import out
from shoal.cli._parse import parse_seconds
from shoal.cli._session import connect
from shoal.cli._source import send_source

TERMS = Group("How peers agree", sort_key=3)
KEEP = Group("Checkpoints", sort_key=4)
COMMAND = "swarm create"


def create(
    name: str,
    /,
    *entry: str,
    target_batch_size: Annotated[int, Parameter(group=TERMS)],
    mode: Annotated[Literal["local-steps", "large-batch"], Parameter(group=TERMS)] = "local-steps",
    local_steps: Annotated[int | None, Parameter(group=TERMS)] = None,
    compression: Annotated[Literal["int8", "fp16", "none"], Parameter(group=TERMS)] = "int8",
    outer_lr: Annotated[float | None, Parameter(group=TERMS)] = None,
    outer_momentum: Annotated[float | None, Parameter(group=TERMS)] = None,
    aggregation: Annotated[Literal["mean", "robust"], Parameter(group=TERMS)] = "mean",
    clip: Annotated[float | None, Parameter(group=TERMS)] = None,
    trust: Annotated[Literal["trusted", "invited", "open"], Parameter(group=TERMS)] = "invited",
    seed: Annotated[int, Parameter(group=TERMS)] = 0,
    checkpoint_rounds: Annotated[int | None, Parameter(group=KEEP)] = None,
    checkpoint_every: Annotated[str | None, Parameter(group=KEEP)] = None,
    keep_last: Annotated[int | None, Parameter(group=KEEP)] = None,
    public: bool = False,
    port: int = 0,
    address: str | None = None,
    flags: CodeFlags | None = None,
) -> int:
    """Make a swarm: one model, trained by all who join. Prints the command to join by.

    The server keeps a peer of its own in it, by which others find each other,
    and which keeps checkpoints; it does not train. Peers get the code and the
    datasets by their hashes.

    For example:

      shoal swarm create gpt --target-batch-size 512 -- train.py --lr 3e-4
      shoal swarm create mlm --target-batch-size 4096 --mode large-batch --compression fp16 \\
          --dataset wikitext -- train.py --data /input/wikitext
      shoal swarm create open --target-batch-size 256 --aggregation robust --trust open --public -- train.py

    Parameters
    ----------
    name
        What to call the swarm; unique in its workspace.
    entry
        After `--`: the script, relative to the code's root, and its arguments.
    target_batch_size
        Samples of all peers together in one batch.
    mode
        local-steps: many steps alone, then one exchange; large-batch: every batch is averaged (default local-steps).
    local_steps
        Steps between two exchanges (default 50).
    compression
        Of what is exchanged (default int8).
    outer_lr
        Learning rate of the exchange (default 1.0).
    outer_momentum
        Momentum of the exchange (default 0.5).
    aggregation
        mean, or robust: what few send out of line is left out (default mean).
    clip
        Largest norm of a peer's update, in usual ones.
    trust
        Who may send what: trusted, invited or open (default invited).
    seed
        Of the data order; each peer has one of its own made of it (default 0).
    checkpoint_rounds
        Keep one at least every so many rounds (default 10).
    checkpoint_every
        Keep one at least this often: 90s, 10m, 1h (default 10m).
    keep_last
        How many stay (default 5).
    public
        Show how far it is on the page behind the link.
    port
        Where the server's own peer listens (default: a free one).
    address
        Of this server in the link, as peers reach it (default: as you do).
    """
    from shoal.cli._swarm_page import join_link, tell_link
    from shoal.core.swarm import SwarmSpec

    refuse_stray_words(entry, command=COMMAND)
    flags = flags or CodeFlags()
    choice = flags.choice()
    check_entry_name(name, entry, COMMAND)
    given = {"local_steps": local_steps, "outer_lr": outer_lr, "outer_momentum": outer_momentum, "clip": clip,
             "every_rounds": checkpoint_rounds, "every_s": parse_seconds(checkpoint_every, "--checkpoint-every"),
             "keep_last": keep_last}  # fmt: skip
    spec = SwarmSpec(
        name=name,
        source_id="",
        entry=list(entry) or ["-"],
        datasets=flags.dataset or [],
        env=flags.variables(),
        target_batch_size=target_batch_size,
        mode=mode,
        compression=compression,
        aggregation=aggregation,
        trust=trust,
        seed=seed,
        public=public,
        port=port,
        **{key: value for key, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    with connect() as client:
        spec.source_id, spec.entry = send_source(client, choice, entry)
        with submitting(f"swarm inspect {name}"):
            made = client.swarms.create(spec)
        link = join_link(client, made.invitation.token, address)

    def tell() -> None:
        out.say(f"Made swarm '{made.swarm.name}' on {client.url}. To join it, on any machine:")
        tell_link(link, address=address)

    out.show({**made.model_dump(mode="json"), "link": link}, tell)
    return 0
