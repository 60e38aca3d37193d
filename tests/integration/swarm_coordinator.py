"""A keeper without a swarm: speaks the keeper's protocol, trains nothing. `python swarm_coordinator.py ORDER`.

It tells of a round every tenth of a second, writes down what it is told, and has a child that ends only if it is killed.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

order = json.loads(Path(sys.argv[1]).read_text())
folder, lock = Path(order["folder"]), threading.Lock()


def say(**words):
    with lock:
        print(json.dumps(words), flush=True)


def keep(number):
    path = folder / f"round-{number}"
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(b"w" * 1000)
    (path / "swarm.json").write_text(json.dumps({"round": number, "samples": 8 * number, "loss": 1.0, "hash": "h"}))
    say(event="checkpoint", path=str(path), round=number, hash="h", loss=1.0)


def listen():
    for line in sys.stdin:
        with (folder.parent / "heard.jsonl").open("a") as heard:
            heard.write(line)
        what = json.loads(line)["do"]
        if what == "checkpoint":
            keep(state["round"])
        elif what == "stop":
            state["over"] = True


start = json.loads((Path(order["snapshot"]) / "swarm.json").read_text())["round"] if order["snapshot"] else 0
state = {"round": start, "over": False}
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
signal.signal(signal.SIGTERM, lambda *_: state.update(over=True))
threading.Thread(target=listen, daemon=True).start()
say(event="ready", addresses=[f"/ip4/127.0.0.1/tcp/{order['listen'][0].rpartition('/')[2]}/p2p/Qm"])
while not state["over"]:
    state["round"] += 1
    say(event="progress", round=state["round"], samples=8 * state["round"], loss=1.0, alive=1, performance=1.0)
    time.sleep(0.1)
