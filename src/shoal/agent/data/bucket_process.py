"""Program that shows a bucket as a folder: `python -m shoal.agent.data.bucket_process`, started by the agent.

It reads one line of JSON from stdin (the bucket, the keys, the folder) and writes lines of JSON to stdout: `ready` once, or
`error`, and `say` for the job's log. It ends, and unmounts, when stdin is closed, even if the agent was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from typing import Any

from shoal.agent.data.bucket_reader import BucketReader, copy_all
from shoal.agent.data.bucket_tree import Tree
from shoal.agent.data.fuse import Server, mount, unmount
from shoal.core.s3_url import parse_s3_url

_KEPT_FREE = 1 << 30
_SAID_EVERY = 1 << 30


def main() -> None:
    """Serve the folder until stdin is closed."""
    request = json.loads(sys.stdin.readline())
    try:
        folder = request["folder"]
        place = parse_s3_url(request["source"])
        reader = BucketReader(place, request["keys"])
        tree = Tree(reader.objects())
        if not tree.files:
            raise FileNotFoundError("no object has this prefix")
        how = _show(request, tree, reader)
    except Exception as error:
        write({"error": _one_line(error)})
        return
    try:
        write({"ready": how, "files": len(tree.files), "bytes": tree.size, "left_out": tree.left_out})
        sys.stdin.read()
    finally:
        unmount(folder)


def write(message: dict[str, Any]) -> None:
    """Write one line for the agent."""
    with _writing:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


_writing = threading.Lock()


def _show(request: dict[str, Any], tree: Tree, reader: BucketReader) -> str:
    """Mount the folder, or copy the files to it where mounting is not allowed; return how."""
    folder = request["folder"]
    try:
        if request["copy"]:
            raise OSError("copies were requested")
        fd = mount(folder)
    except OSError as error:
        _fetch(folder, tree, reader, error)
        return "copied"
    Server(fd, tree, reader, lambda text: write({"say": text})).start()
    os.listdir(folder)  # noqa: PTH208  the first answers; an error here is one of the start
    return "mounted"


def _fetch(folder: str, tree: Tree, reader: BucketReader, why: OSError) -> None:
    free = shutil.disk_usage(folder).free - _KEPT_FREE
    if tree.size > free:
        raise OSError(
            f"it cannot be mounted here ({why.strerror or why}), and {tree.size / 1e9:.1f} GB do not fit on the disk"
        )
    write({"say": f"cannot be mounted here ({why.strerror or why}): copying {tree.size / 1e6:.1f} MB first"})
    done = [0, 0]

    def count(size: int) -> None:
        done[0] += size
        if done[0] - done[1] >= _SAID_EVERY:
            done[1] = done[0]
            write({"say": f"{done[0] / 1e9:.0f} of {tree.size / 1e9:.0f} GB copied"})

    copy_all(reader, list(tree.files.values()), folder, count)


def _one_line(error: Exception) -> str:
    words = str(error).strip().splitlines()
    return words[0][:400] if words else type(error).__name__


if __name__ == "__main__":
    main()
