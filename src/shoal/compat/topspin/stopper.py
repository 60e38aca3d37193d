"""Command that stops trainings: `python -m topspin.estimator.stopper PATH_WORK`, or --path_work, --servers, --servers_file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.stopping import clear_server, stop
from shoal.core.errors import NotFound, ShoalError, UsageError
from shoal.train.hosts import read_servers


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stopper", description="Let trainings save and stop.")
    parser.add_argument("path", nargs="*", help="work folder of a run or of a batch")
    add_options(parser)
    args = parser.parse_args(argv)
    Logger.set_level(args.debug_level)
    try:
        return run(args, args.path)
    except ShoalError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"error: {error.message}{hint}", file=sys.stderr)
        return error.exit_code


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--path_work", help="work folder of a run or of a batch")
    parser.add_argument("--servers", help="stop all trainings on these servers: ip1,ip2")
    parser.add_argument("--servers_file", help="stop all trainings on the servers listed in this file")
    parser.add_argument("--debug_level", type=int, default=1)


def run(args: argparse.Namespace, paths: Sequence[str]) -> int:
    folders = [*paths, *([args.path_work] if args.path_work else [])]
    hosts = [ip.strip() for ip in (args.servers or "").split(",") if ip.strip()]
    if args.servers_file:
        hosts += [host.address for host, _ in read_servers(args.servers_file)]
    if not folders and not hosts:
        raise UsageError("nothing to stop was given", hint="stopper work/run.my_task.…")
    for folder in folders:
        if not Path(folder).is_dir():
            raise NotFound(f"there is no folder {folder}", hint=f"relative paths start at {Path.cwd()}")
        Logger.info(stop(folder))
    for host in hosts:
        clear_server(host)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
