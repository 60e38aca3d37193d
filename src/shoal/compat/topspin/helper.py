"""Helper functions that TopSpin scripts import from `topspin`, `topspin.tools.helper` or `palframe.nlp`."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from shoal.compat.topspin.logs import Logger, Timer, get_future_time, get_log_time, to_readable_time  # noqa: F401
from shoal.compat.topspin.seeds import seed_generators
from shoal.core.errors import UsageError
from shoal.train import probe
from shoal.train.hosts import Host, own_address

__all__ = """
    EPSILON INF Logger Timer async_function cmp command display_server_info ensure_random_seed_for_one_time eq
    execute_cmd get_GPU_num get_IPs get_available_gpus get_file_extension get_file_line_count get_files_in_folder
    get_files_line_count get_future_time get_home_dir get_log_time get_module_path get_new_temporay_file
    get_server_ip get_server_ip0 group_by_key_fun is_debugging is_none_or_empty is_os_linux is_sys_mac
    load_module_from_full_path load_py_data log_sum mkdir next_batch next_line_from_file next_line_from_files
    print_flush pydict_file_read pydict_file_write replace_file_name segment_contain segment_intersec
    segment_no_touch set_random_seeds split_data_by_func timeout to_readable_time to_utf8 uniq
""".split()

INF = float("inf")
EPSILON = 1e-6


def is_none_or_empty(data: Any) -> bool:
    return data is None or (isinstance(data, str | list | tuple | set | dict) and not data)


def set_random_seeds(seed: int = 0) -> None:
    """Seed all generators; 0 draws a random seed."""
    seed_generators(seed or random.SystemRandom().randrange(1, 2**31))


@functools.cache
def ensure_random_seed_for_one_time() -> None:
    random.seed()


def is_sys_mac() -> bool:
    return sys.platform == "darwin"


def is_os_linux() -> bool:
    return "linux" in sys.platform


def is_debugging() -> bool:
    return sys.gettrace() is not None


def next_batch(data: Iterable[Any], batch_size: int) -> Iterator[list[Any]]:
    items = iter(data)
    while batch := list(itertools.islice(items, batch_size)):
        yield batch


def async_function(f: Callable[..., Any]) -> Callable[..., threading.Thread]:
    """Decorate a function so that each call runs in a new thread and returns that thread."""

    @functools.wraps(f)
    def started(*args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(target=f, args=args, kwargs=kwargs)
        thread.start()
        return thread

    return started


def timeout(func: Callable[..., Any], args: list[Any], max_time_seconds: float) -> Any:
    """Return the function's result, or raise TimeoutError. The function cannot be interrupted and continues in its thread."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(func(*args))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(max_time_seconds)


def load_py_data(py_file: str) -> dict[str, Any]:
    """Return the names that a Python file defines."""
    found: dict[str, Any] = vars(load_module_from_full_path(py_file))
    return found


def load_module_from_full_path(path: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(path).absolute())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def get_module_path(module_name: str) -> str | None:
    """Return the entry of sys.path that contains a module, or None."""
    name = module_name.replace(".", "/") + ".py"
    return next((path or "." for path in sys.path if (Path(path or ".") / name).exists()), None)


def command(
    cmd: str, capture_output: bool = False, server: str | None = None, account: str | None = None
) -> tuple[int, str, str]:
    """Run a shell command, on a server over ssh if one is given; return (exit code, stdout, stderr)."""
    host = Host(f"{account}@{server}" if account and server else server or "")
    Logger.debug(f"[start] executing '{cmd}' on {host}")
    done = subprocess.run(host.command(["sh", "-c", cmd]), capture_output=capture_output, text=True, check=False)
    Logger.debug(f"[finish - {'OK' if done.returncode == 0 else 'fail'}] '{cmd}'")
    return done.returncode, done.stdout or "", done.stderr or ""


def execute_cmd(*cmds: str) -> int:
    return command(" ".join(cmds))[0]


def mkdir(folder: str, delete_first: bool = False) -> None:
    if delete_first:
        shutil.rmtree(folder, ignore_errors=True)
    Path(folder).mkdir(parents=True, exist_ok=True)


def get_home_dir() -> str:
    return str(Path.home())


def get_new_temporay_file() -> str:
    handle, name = tempfile.mkstemp()
    os.close(handle)
    return name


def get_file_extension(file_name: str) -> str:
    return file_name.rpartition(".")[2]


def replace_file_name(file_name: str, old_suffix: str, new_suffix: str) -> str:
    if not file_name.endswith(old_suffix):
        raise UsageError(f"{file_name} does not end in {old_suffix}")
    return file_name[: len(file_name) - len(old_suffix)] + new_suffix


def get_files_in_folder(
    data_path: str, file_extensions: Iterable[str] | None = None, recursive: bool = False
) -> Iterator[str]:
    """Yield the full names of the files in a folder, without hidden ones."""
    wanted = set(file_extensions or ())
    root = Path(data_path)
    for path in sorted(root.rglob("*") if recursive else root.glob("*")):
        if path.is_file() and not path.name.startswith(".") and (not wanted or path.suffix[1:] in wanted):
            yield str(path.resolve())


def next_line_from_file(file_name: str, max_count: int = -1) -> Iterator[str]:
    with Path(file_name).open() as file:
        for line in itertools.islice(file, max_count if max_count > 0 else None):
            yield line.rstrip()


def next_line_from_files(file_names: Iterable[str], max_count: int = -1) -> Iterator[str]:
    for name in file_names:
        yield from next_line_from_file(name, max_count)


def get_file_line_count(file_name: str) -> int:
    with Path(file_name).open("rb") as file:
        return sum(1 for _ in file)


def get_files_line_count(file_names: Iterable[str]) -> int:
    return sum(map(get_file_line_count, file_names))


def pydict_file_read(file_name: str, max_num: int = -1) -> Iterator[Any]:
    """Yield the Python values of a file with one value per line. Invalid lines are logged and skipped."""
    for number, line in enumerate(next_line_from_file(file_name), 1):
        if 0 <= max_num < number:
            return
        try:
            yield ast.literal_eval(line)
        except (ValueError, SyntaxError) as error:
            Logger.error(f"reading {file_name}:{number}: {error} '{line}'")


def pydict_file_write(data: Iterable[Any], file_name: str, **options: Any) -> None:
    items = [data] if isinstance(data, dict) else data
    with Path(file_name).open("w", encoding="utf-8") as file:
        number = 0
        for number, item in enumerate(items, 1):  # noqa: B007
            if "\n" in (line := str(item)):
                raise UsageError(f"a value with a line break cannot be written to {file_name}: {line[:100]!r}")
            file.write(line + "\n")
    if options.get("print_log", True):
        Logger.info(f"{file_name} has been written {number} lines totally")


def get_IPs() -> set[str]:
    return set(probe.interfaces().values())


def get_server_ip() -> str:
    return own_address()


get_server_ip0 = get_server_ip


def display_server_info() -> None:
    Logger.info(f"server information: {socket.gethostname()}({get_server_ip()}), process: {os.getpid()}")


def get_available_gpus(server_ip: str | None = None, account: str | None = None) -> list[int]:
    """Return the GPUs that are hardly used, on a server if one is given."""
    host = Host(f"{account}@{server_ip}" if account and server_ip else server_ip or "")
    return probe.free_gpus(host.examine({"cwd": "/", "paths": [], "gpus": True})["gpus"])


def get_GPU_num() -> int:
    import torch

    count: int = torch.cuda.device_count()
    return count


def to_utf8(line: str | bytes) -> bytes:
    return line.encode() if isinstance(line, str) else line


def print_flush(cont: Any, stream: Any = None) -> None:
    print(cont, file=stream, flush=True)


def segment_contain(seg1: list[Any], seg2: list[Any]) -> int:
    """Return 1 if the first segment contains the second, -1 for the reverse, 0 for neither."""
    if seg1[0] <= seg2[0] and seg2[1] <= seg1[1]:
        return 1
    return -1 if seg2[0] <= seg1[0] and seg1[1] <= seg2[1] else 0


def segment_no_touch(seg1: list[Any], seg2: list[Any]) -> bool:
    return bool(seg1[1] <= seg2[0] or seg2[1] <= seg1[0])


def segment_intersec(seg1: list[Any], seg2: list[Any]) -> bool:
    return not segment_no_touch(seg1, seg2)


def uniq(data: Iterable[Any]) -> Iterator[Any]:
    """Yield the distinct items of sorted data."""
    return (key for key, _ in itertools.groupby(data))


def cmp(a: Any, b: Any) -> int:
    return int(a > b) - int(a < b)


def eq(v1: float, v2: float, prec: float = EPSILON) -> bool:
    return abs(v1 - v2) < prec


def log_sum(ds: list[float]) -> float:
    """Return log(p1 + p2 + …) for [log(p1), log(p2), …]."""
    top = max(ds)
    return top + math.log(sum(math.exp(d - top) for d in ds))


def group_by_key_fun(data: Iterable[Any], key_fun: Callable[[Any], Any] | None = None) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in data:
        groups[item[0] if key_fun is None else key_fun(item)].append(item)
    return groups


def split_data_by_func(data: Iterable[Any], func: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    yes, no = list[Any](), list[Any]()
    for item in data:
        (yes if func(item) else no).append(item)
    return yes, no
