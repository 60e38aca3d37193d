"""A job that makes way for a more important one: it saves, waits and goes on at its step, whatever happens to the server meanwhile."""

import pytest

from shoal.sdk.samples.order import epoch_order
from shoal.testing.engines import eventually
from shoal.testing.live import live_server

SAMPLES, BATCH, SEED, MORE = 61, 4, 3, 40
# At first it has no end, and saves only if it is told to stop; later it makes some more steps.
LOW = f"""
import os, time, torch, shoal

torch.set_num_threads(1)
is_first = os.environ["SHOAL_ATTEMPT"] == "1"
data = torch.utils.data.TensorDataset(torch.sin(torch.arange({SAMPLES}.0)).unsqueeze(1), torch.arange({SAMPLES}))
with shoal.init(seed={SEED}, parallel="none", checkpoint_every=10**9, checkpoint_every_s=None) as run:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size={BATCH}, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    last = 10**9 if is_first else run.global_step + {MORE}
    print("from", run.global_step, flush=True)
    while run.global_step < last and not run.should_stop:
        for x, index in loader:
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            print("step", run.global_step, *index.tolist(), flush=True)
            time.sleep(0.01 if is_first else 0)
            if run.global_step >= last or run.should_stop:
                break
"""
HIGH = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
"""


@pytest.fixture
def server(tmp_path):
    with live_server(tmp_path / "home", slots=2) as server:
        yield server


@pytest.mark.torch
def test_a_job_makes_way_saves_and_goes_on_at_its_step_though_the_server_is_killed_twice(server, code, tmp_path):
    folder, go = code({"low.py": LOW, "high.py": HIGH}), tmp_path / "go"
    server.cli("training", "run", "low", "--dir", str(folder), "--", "low.py")
    server.wait_for("low", lambda j: j.progress and j.progress.step > 20, "trains")
    with server.client() as client:
        spec = client.jobs.get("low").spec
        client.jobs.create(
            spec.model_copy(update={"name": "high", "entry": ["high.py", str(go)], "accels": 2, "priority": 5})
        )
    server.wait_for("low", lambda j: "preempted" in [e.kind for e in j.events], "is told to make way")
    server.kill()  # with the word on its way
    server.start()
    server.wait_for("high", lambda j: j.status == "running", "has both slots")
    assert server.wait_for("low", lambda j: j.status == "queued").attempts == 1
    server.kill()
    go.touch()
    server.start()
    low = server.wait_for("low", lambda j: j.status.is_terminal, "ends")
    high = server.wait_for("high", lambda j: j.status.is_terminal)
    assert (high.status, high.attempts) == ("succeeded", 1), high.reason
    assert (low.status, low.attempts, [a.result for a in low.attempt_list]) == (
        "succeeded",
        2,
        ["preempted", "succeeded"],
    ), low.reason
    assert "preempted by job 'high' with priority 5" in low.attempt_list[0].reason
    assert_every_step_once(server)


def assert_every_step_once(server):
    """Check the output of both attempts: no step is left out or repeated, and the samples are in order."""

    def words():
        return [line["text"].split() for line in server.logs("low") if line["rank"] is not None]

    eventually(lambda: sum(w[0] == "from" for w in words()) == 2)
    found = words()
    begins = [int(w[1]) for w in found if w[0] == "from"]
    steps = [list(map(int, w[1:])) for w in found if w[0] == "step"]
    assert begins[0] == 0 and begins[1] > 20
    assert [step for step, *_ in steps] == list(range(1, begins[1] + MORE + 1))
    batches = -(-SAMPLES // BATCH)
    for step, *samples in steps:
        epoch, batch = divmod(step - 1, batches)
        assert samples == epoch_order(SAMPLES, SEED, epoch)[batch * BATCH : (batch + 1) * BATCH], step
    told = server.json("training", "metrics", "low")["loss"]
    assert [step for step, _ in told] == [step for step, *_ in steps]
