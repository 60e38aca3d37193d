"""The trials of bench/sweep.py by Ray Tune, on two of its CPUs: started by it with an interpreter that has `ray[tune]` (and torch).

python bench/sweep_ray.py plain|torch TRIALS [--reuse]
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

import ray
from ray import tune

SOURCE = (Path(__file__).with_name("sweep_trials.py")).read_text()


def trial(config: dict) -> None:
    found: dict = {}
    exec(config["source"], found)  # as a script of the user's would, not by importing what the driver has imported
    tune.report({"loss": found[config["kind"]](config["x"])})


def main() -> None:
    kind, count = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        began = time.monotonic()
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=None)
        ready = time.monotonic()
        tuner = tune.Tuner(
            tune.with_resources(trial, {"cpu": 1}),
            param_space={"x": tune.grid_search(list(range(count))), "kind": kind, "source": SOURCE},
            tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors="--reuse" in sys.argv),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        results = tuner.fit()
        done = time.monotonic()
        losses = [r.metrics["loss"] for r in results if r.metrics and not r.error]
        ray.shutdown()
    print(json.dumps({"start_s": ready - began, "seconds": done - ready, "losses": losses}))


if __name__ == "__main__":
    main()
