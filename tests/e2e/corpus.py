"""Texts that would run if anything let them, with what has to be seen instead; and a script and a picture to look at."""

from __future__ import annotations

import math
import struct
import zlib

HOSTILE = "\"'><script>ran(1)</script><img src=x onerror=ran(2)>{{7*7}}${7*7}"
"""Hostile texts for fields of one line. `ran` tells the tests that a script ran."""
NAME = "\"'><img src=x onerror=ran(14)>{{7*7}}${7*7}"
"""Hostile texts for names, which are also parts of addresses: no slashes."""
CORPUS = [
    HOSTILE,
    "</title></style></textarea></script><script>ran(3)</script>",
    "<svg onload=ran(4)><animate onbegin=ran(5) attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.ran(6)</script>'></iframe>",
    '<a href="javascript:ran(7)">click</a> javascript:ran(8)',
    "<math><mtext><table><mglyph><style><img src=x onerror=ran(9)>",
    "&lt;img src=x onerror=ran(10)&gt;",
    "<div hx-get='/sign-in' hx-trigger='load' hx-on:load='ran(11)'>htmx</div>",
    "<form action=//example.org><button autofocus onfocus=ran(12)>x</button>",
    "\u202egnp.exe\u2066 <b>right to left</b>",
    "<!--><img src=x onerror=ran(13)>-->",
]
ANSI = [
    ("\x1b[31m<img src=x onerror=ran(20)>\x1b[0m", "<img src=x onerror=ran(20)>"),
    ("\x1b]8;;javascript:ran(21)\x1b\\press me\x1b]8;;\x1b\\ now", "press me now"),
    ("\x1b]0;<script>ran(22)</script>\x07titled", "titled"),
    ("\x1b[38;2;1;2;3m\x1b[38;5;999mcolours</span><script>ran(23)</script>", "colours</span><script>ran(23)</script>"),
    ("\x1b[2J\x1b[Hcleared\x1bP+q\x1b\\ \x9b31mend", "cleared"),
]
"""(as logged, what has to be shown)."""
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='ran(30)'><script>ran(31)</script><rect width='9' height='9'/></svg>"


def picture(shift: int = 0, size: int = 160) -> bytes:
    """A PNG to look at."""

    def pixel(x: int, y: int) -> bytes:
        return bytes(((x + shift) % 256, y % 256, 128 + int(90 * math.sin((x * y + shift) / 800))))

    rows = b"".join(b"\0" + b"".join(pixel(x, y) for x in range(size)) for y in range(size))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


TRAIN = b'''"""Digits, with a small network."""

import argparse

import torch

import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)  # of the first step
options = parser.parse_args()

run = shoal.init(config=vars(options))
for step in run.steps(300):
    run.step(loss=2.3 * 0.99**step)
'''
