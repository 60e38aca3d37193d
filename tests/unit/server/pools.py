"""Made-up pools and queues for tests of the scheduler."""

import random

from hypothesis import strategies as st

from shoal.server.scheduler.decide import MachineState, Policy, QueuedJob, QueueState, RunningJob, Share


def machine(slots, used=(), name="m", kind="cpu", **more):
    return MachineState(name=name, slots=slots, used=frozenset(used), kind=kind, **more)


def job(id_, *, nodes=1, max_nodes=None, accels=1, priority=0, at=0.0, **more):
    return QueuedJob(
        job_id=id_,
        priority=priority,
        order=(at, id_),
        min_nodes=nodes,
        max_nodes=max_nodes or nodes,
        accels=accels,
        since=at,
        **more,
    )


def running(id_, slots, *, priority=0, ends=None, started=0.0, **more):
    return RunningJob(
        job_id=id_,
        priority=priority,
        slots=slots if isinstance(slots, dict) else {"m": slots},
        ends_in_s=ends,
        started=started,
        **more,
    )


def seen(machines, queue, running=(), *, now=1000.0, shares=None, away=(), **policy):
    return QueueState(
        now=now,
        machines=machines,
        queue=queue,
        running=running,
        shares=shares or {},
        policy=Policy(**policy),
        away=away,
    )


def busy(rng: random.Random, *, machines=4, slots=8, queued=12, known=True, workspaces=2, quota=None):
    """A pool with jobs on it and more waiting, all of it a matter of the seed."""
    pool, live, number = [], [], 0
    for index in range(machines):
        name, used = f"m{index}", 0
        while used < slots and rng.random() < 0.9:
            width = min(rng.choice((1, 2, 4)), slots - used)
            asked = job(
                f"r{number:02}",
                accels=width,
                priority=rng.choice((0, 0, 1)),
                workspace=f"w{rng.randrange(workspaces)}",
                expected_s=rng.uniform(300, 4000) if known else None,
            )
            live.append(
                RunningJob(
                    job_id=asked.job_id,
                    priority=asked.priority,
                    slots={name: width},
                    workspace=asked.workspace,
                    started=-rng.uniform(0, 500),
                    ends_in_s=asked.expected_s,
                    asked=asked,
                )
            )
            used, number = used + width, number + 1
        pool.append(machine(slots, range(used), name))
    queue = [
        job(
            f"q{i:02}",
            nodes=rng.choice((1, 1, 1, 2)),
            accels=rng.choice((1, 2, 4, 8)),
            priority=rng.choice((0, 0, 0, 1)),
            at=float(i - queued),
            workspace=f"w{rng.randrange(workspaces)}",
            expected_s=(length := rng.uniform(300, 4000)) if known else None,
            limit_s=length * 1.5 if known and rng.random() < 0.7 else None,
            exclude=frozenset({"m0"}) if rng.random() < 0.15 else frozenset(),
        )
        for i in range(queued)
    ]
    shares = {f"w{i}": Share(quota=quota, weight=1.0 + i) for i in range(workspaces)}
    return QueueState(now=0.0, machines=pool, queue=queue, running=live, shares=shares, policy=Policy(preempt=False))


pools = st.lists(
    st.integers(0, 8).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(n - 1, 0)), max_size=n))),
    max_size=4,
).map(lambda found: [machine(n, used if n else (), name=f"m{i}") for i, (n, used) in enumerate(found)])
queues = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 2),
        st.integers(1, 4),
        st.integers(-2, 2),
        st.sampled_from("abc"),
        st.sampled_from([None, 50.0, 5000.0]),
        st.sampled_from([frozenset(), frozenset({"m0"})]),
    ),
    max_size=12,
).map(
    lambda found: [
        job(f"j{i}", nodes=lo, max_nodes=lo + more, accels=a, priority=p, at=i, workspace=w, limit_s=limit, exclude=ex)
        for i, (lo, more, a, p, w, limit, ex) in enumerate(found)
    ]
)
