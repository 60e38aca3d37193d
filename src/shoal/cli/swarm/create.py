"""`shoal swarm create`: upload the code, create the swarm, and print the command to join it."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Group, Parameter

from shoal.cli.shared.job_flags import CodeFlags, check_entry_name, refuse_stray_words, submitting
from shoal.cli.shared.output import out
from shoal.cli.shared.parse import parse_seconds
from shoal.cli.shared.session import connect
from shoal.cli.shared.source import send_source

TERMS = Group("Training terms of the swarm", sort_key=3)
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
    aggregation: Annotated[Literal["mean", "robust"] | None, Parameter(group=TERMS)] = None,
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
    """Create a swarm: one model, trained by all who join. Prints the command to join it.

    The server runs the swarm coordinator: peers find each other through it,
    and it saves checkpoints; it does not train. Peers download the code and
    datasets and verify their hashes.

    For example:

      shoal swarm create gpt --target-batch-size 512 -- train.py --lr 3e-4
      shoal swarm create mlm --target-batch-size 4096 --mode large-batch --compression fp16 \\
          --dataset wikitext -- train.py --data /input/wikitext
      shoal swarm create open --target-batch-size 256 --trust open --public -- train.py

    Parameters
    ----------
    name
        Name of the swarm, unique in its workspace.
    entry
        The script, relative to the code's root, and its arguments, after `--`.
    target_batch_size
        Number of samples of all peers together in one batch.
    mode
        local-steps (many local steps, then one exchange) or large-batch (every batch is averaged). Default local-steps.
    local_steps
        Number of local steps between two exchanges (default 50).
    compression
        Compression of exchanged tensors (default int8).
    outer_lr
        Learning rate of the exchange (default 1.0).
    outer_momentum
        Momentum of the exchange (default 0.5).
    aggregation
        mean, or robust (updates of a minority that deviate from the others are ignored). Default mean; robust with --trust open.
    clip
        Maximum norm of a peer's update, as a multiple of the usual norm.
    trust
        How far peers are trusted: trusted (anyone who connects), invited (members only), or open (members only, none of them
        trusted: aggregation is robust). Default invited.
    seed
        Random seed of the data order; each peer derives its own from it (default 0).
    checkpoint_rounds
        Save a checkpoint at least every this many rounds (default 10).
    checkpoint_every
        Save a checkpoint at least this often: 90s, 10m, 1h (default 10m).
    keep_last
        Number of newest checkpoints to keep (default 5).
    public
        Show the progress on the public page of the link.
    port
        Port of the swarm coordinator on the server (default: a free port).
    address
        Address of this server in the link, as peers reach it (default: the one you use).
    """
    from shoal.cli.swarm.page import join_link, print_link
    from shoal.core.swarm import SwarmSpec

    refuse_stray_words(entry, command=COMMAND)
    flags = flags or CodeFlags()
    choice = flags.choice()
    check_entry_name(name, entry, COMMAND)
    given = {"local_steps": local_steps, "outer_lr": outer_lr, "outer_momentum": outer_momentum,
             "aggregation": aggregation, "clip": clip,
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

    def show() -> None:
        out.info(f"Created swarm '{made.swarm.name}' on {client.url}. To join it, run on any machine:")
        print_link(link, address=address)

    out.show({**made.model_dump(mode="json"), "link": link}, show)
    return 0
