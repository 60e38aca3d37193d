"""A lease's own port: bytes go through as they are, and whoever knocks too often waits, then is sent away."""

import asyncio
import os
import socket

import pytest

from shoal.agent.lease import listener as lease_listener
from shoal.agent.lease.listener import Allowance, DirectListener


async def _echo(reader, writer):
    writer.write(b"SSH-2.0-echo\r\n")
    while piece := await reader.read(1000):
        writer.write(piece)
        await writer.drain()
    writer.write(b"the end")
    writer.close()


def at_the_door(tmp_path, visit):
    async def run():
        path = str(tmp_path / "s")
        async with await asyncio.start_unix_server(_echo, path):
            door = DirectListener(path)
            port = await door.open("127.0.0.1")
            assert await door.open("127.0.0.1") == port, "as long as the address is the same"
            return await visit(port)

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_bytes_go_through_both_ways_and_the_end_of_one_is_not_the_end_of_the_other(tmp_path):
    sent = os.urandom(3 << 20)

    async def visit(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readline() == b"SSH-2.0-echo\r\n"
        writer.write(sent)
        writer.write_eof()
        return await reader.read(-1)

    assert at_the_door(tmp_path, visit) == sent + b"the end"


@pytest.mark.flaky(reason="failed once on an overloaded machine, cause not found")
def test_whoever_leaves_without_a_word_takes_nobody_along(tmp_path):
    async def visit(port):
        _, rude = await asyncio.open_connection("127.0.0.1", port)
        polite, writer = await asyncio.open_connection("127.0.0.1", port)
        rude.transport.abort()
        writer.write_eof()
        return await polite.read(-1)

    assert at_the_door(tmp_path, visit) == b"SSH-2.0-echo\r\nthe end"


def test_more_than_may_be_open_at_once_are_sent_away(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_listener, "_MOST_OPEN", 3)

    async def visit(port):
        came = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        greeted = [await reader.readline() for reader, _ in came]
        for _, writer in came:
            writer.close()
        return greeted

    assert at_the_door(tmp_path, visit) == [b"SSH-2.0-echo\r\n"] * 3 + [b""] * 2


def test_one_address_may_come_in_a_burst_then_waits_its_turn_then_is_sent_away():
    allowance = Allowance(100.0)
    assert [allowance.admit(100.0) for _ in range(20)] == [0.0] * 20
    waits = [allowance.admit(100.0) for _ in range(20)]
    assert waits == [n / 2 for n in range(1, 21)]
    assert allowance.admit(100.0) == float("inf")
    assert not allowance.is_full(119.9) and allowance.is_full(120.1)
    assert allowance.admit(120.5) == 0.0


def test_a_machine_is_reached_directly_only_if_an_ssh_server_answers_there(monkeypatch):
    from types import SimpleNamespace

    from shoal.cli.machine import ssh as cli

    monkeypatch.setattr(cli, "_REACH_S", 0.2)

    class View(SimpleNamespace):
        def model_copy(self, update):
            return View(**{**vars(self), **update})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        view = View(
            host="gate", port=22, host_key="gate's", own_host_key="own", direct_host="127.0.0.1", direct_port=port
        )
        assert cli.nearest(view).host == "gate", "nobody says a word there"
    assert cli.nearest(view).host == "gate", "nobody is there"
    assert cli.nearest(View(**{**vars(view), "direct_port": None})).host == "gate"

    async def answered():
        async with await asyncio.start_server(_echo, "127.0.0.1", 0) as server:
            there = View(**{**vars(view), "direct_port": server.sockets[0].getsockname()[1]})
            return await asyncio.to_thread(cli.nearest, there), there.direct_port

    found, port = asyncio.run(answered())
    assert (found.host, found.port, found.host_key) == ("127.0.0.1", port, "own")
