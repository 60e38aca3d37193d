"""A picture of lines and letters in memory, and its PNG: enough for a chart, with nothing to install."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shoal.sdk.media import png

Colour = tuple[int, int, int]
WHITE: Colour = (255, 255, 255)
LETTER_WIDTH, LETTER_HEIGHT = 6, 8
# Five columns a letter from the space to the tilde, each a byte with its lowest bit on top.
_FONT = bytes.fromhex(
    "0000000000" "00005f0000" "0007000700" "147f147f14" "242a7f2a12" "2313086462" "3649562050" "0008070300"
    "001c224100" "0041221c00" "2a1c7f1c2a" "08083e0808" "0050300000" "0808080808" "0060600000" "2010080402"
    "3e5149453e" "00427f4000" "4261514946" "2141454b31" "1814127f10" "2745454539" "3c4a494930" "0171090503"
    "3649494936" "064949291e" "0036360000" "0056360000" "0814224100" "1414141414" "0041221408" "0201510906"
    "324979413e" "7e1111117e" "7f49494936" "3e41414122" "7f4141221c" "7f49494941" "7f09090901" "3e4149497a"
    "7f0808087f" "00417f4100" "2040413f01" "7f08142241" "7f40404040" "7f020c027f" "7f0408107f" "3e4141413e"
    "7f09090906" "3e4151215e" "7f09192946" "4649494931" "01017f0101" "3f4040403f" "1f2040201f" "3f4038403f"
    "6314081463" "0708700807" "6151494543" "007f414100" "0204081020" "0041417f00" "0402010204" "4040404040"
    "0001020400" "2054545478" "7f48444438" "3844444420" "384444487f" "3854545418" "087e090102" "0c5252523e"
    "7f08040478" "00447d4000" "2040443d00" "7f10284400" "00417f4000" "7c04180478" "7c08040478" "3844444438"
    "7c14141408" "081414187c" "7c08040408" "4854545420" "043f444020" "3c4040207c" "1c2040201c" "3c4030403c"
    "4428102844" "0c5050503c" "4464544c44" "0008364100" "00007f0000" "0041360800" "1008081008"
)  # fmt: skip


class Canvas:
    """White at first; x to the right, y downwards. What falls outside is not drawn."""

    def __init__(self, width: int, height: int):
        self.width, self.height = width, height
        self._pixels = bytearray(bytes(WHITE) * (width * height))

    def dot(self, x: int, y: int, colour: Colour) -> None:
        if 0 <= x < self.width and 0 <= y < self.height:
            at = 3 * (y * self.width + x)
            self._pixels[at : at + 3] = bytes(colour)

    def colour_at(self, x: int, y: int) -> Colour:
        at = 3 * (y * self.width + x)
        red, green, blue = self._pixels[at : at + 3]
        return red, green, blue

    def line(self, x0: int, y0: int, x1: int, y1: int, colour: Colour, *, thick: int = 1) -> None:
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            x, y = x0 + round(i * (x1 - x0) / steps), y0 + round(i * (y1 - y0) / steps)
            for dx in range(thick):
                for dy in range(thick):
                    self.dot(x + dx, y + dy, colour)

    def polyline(self, points: Sequence[tuple[int, int]], colour: Colour, *, thick: int = 1) -> None:
        for (x0, y0), (x1, y1) in pairwise(points):
            self.line(x0, y0, x1, y1, colour, thick=thick)
        if len(points) == 1:
            self.line(*points[0], *points[0], colour, thick=thick)

    def text(self, x: int, y: int, text: str, colour: Colour, *, size: int = 1) -> None:
        """Its upper left corner at x, y; letters that are not ASCII become question marks."""
        for i, letter in enumerate(text.encode("ascii", "replace")):
            at = 5 * (letter - 32) if 32 <= letter < 127 else 5 * (ord("?") - 32)
            for column, bits in enumerate(_FONT[at : at + 5]):
                for row in range(7):
                    if bits >> row & 1:
                        left, top = x + size * (LETTER_WIDTH * i + column), y + size * row
                        for dx in range(size):
                            for dy in range(size):
                                self.dot(left + dx, top + dy, colour)

    def to_png(self) -> bytes:
        return png(self.width, self.height, 3, bytes(self._pixels))
