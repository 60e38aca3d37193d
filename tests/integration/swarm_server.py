"""The part of a server that watches keepers, as a process to be killed: `python swarm_server.py HOME KEEPER`."""

import sys
from pathlib import Path

from shoal.server.services.swarm_watch import SwarmWatch
from shoal.testing.server import make_context

ctx = make_context(Path(sys.argv[1]))
watch = SwarmWatch(ctx, "http://127.0.0.1:1", command=[sys.executable, sys.argv[2]])
watch.start()
print("up", flush=True)
sys.stdin.read()
ctx.live.close()
watch.stop()
