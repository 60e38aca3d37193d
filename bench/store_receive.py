"""Bodies of 24 MB into a server process: read by server/bulk_upload.py, beside uvicorn's own way, interleaved.

    python bench/store_receive.py [--rounds 5]

Shows what `bulk_upload` is kept for, although it uses parts of uvicorn that are not public. Target: at least 1.5 times less
processor time of the server. `bench/store.py --http` prints it too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import resource
import socket
import statistics
import time

BODY = 24 << 20
PER_ROUND = 6


def serve(listener: socket.socket, fast: bool) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from shoal.server.bulk_upload import BulkUploadProtocol, received

    async def take(request: Request) -> JSONResponse:
        length = len(await received(request))
        used = resource.getrusage(resource.RUSAGE_SELF)
        return JSONResponse({"length": length, "cpu_s": used.ru_utime + used.ru_stime})

    app = Starlette(routes=[Route("/", take, methods=["POST"])])
    protocol = BulkUploadProtocol if fast else "httptools"
    config = uvicorn.Config(app, http=protocol, loop="uvloop", log_level="error")  # type: ignore[arg-type]
    uvicorn.Server(config).run(sockets=[listener])


def send(port: int, body: bytes) -> float:
    """Sends the bodies of a round and returns the server's processor time in seconds."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    used: list[float] = []
    for n in range(PER_ROUND + 1):
        link.request("POST", "/", body=body if n else b"x")
        answer = json.loads(link.getresponse().read())
        assert answer["length"] == (len(body) if n else 1), answer
        used.append(answer["cpu_s"])
    link.close()
    return used[-1] - used[0]


def compare(rounds: int = 5) -> dict[str, float]:
    """Medians of the server's milliseconds per 100 MB: `fast` and `usual`, and how many times less fast is."""
    body, spent = os.urandom(BODY), {True: list[float](), False: list[float]()}
    context, servers = multiprocessing.get_context("fork"), {}
    for fast in spent:
        listener = socket.create_server(("127.0.0.1", 0))
        process = context.Process(target=serve, args=(listener, fast), daemon=True)
        process.start()
        servers[fast] = (process, listener.getsockname()[1])
    try:
        for _ in range(rounds + 1):  # the first warms both
            for fast, (_process, port) in servers.items():
                spent[fast].append(send(port, body))
    finally:
        for process, _port in servers.values():
            process.terminate()
            process.join()
    fast, usual = (statistics.median(spent[key][1:]) * 1e5 / (PER_ROUND * BODY / 1e6) for key in (True, False))
    return {"fast": fast, "usual": usual, "times_less": usual / fast}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    began = time.monotonic()
    found = compare(parser.parse_args().rounds)
    print(f"uvicorn's own        {found['usual']:7.1f} ms of the server's CPU per 100 MB")
    print(f"bulk_upload          {found['fast']:7.1f} ms of the server's CPU per 100 MB")
    print(f"{found['times_less']:.1f} × less   target at least 1.5   ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
