"""Small grey images of shapes, drawn with noise at any place and size."""

import torch

SHAPES = ["disc", "square", "cross", "ring"]


class Shapes(torch.utils.data.Dataset):
    """Image number i is the same every time; `augment` flips and shifts it differently each time it is read."""

    def __init__(self, count, seed, size=24, augment=False):
        self._seed, self._size, self._augment, self._count = seed, size, augment, count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        shape = int(torch.randint(len(SHAPES), (), generator=draw))
        radius = 4 + 4 * torch.rand((), generator=draw)
        at = radius + (self._size - 1 - 2 * radius) * torch.rand(2, generator=draw)
        line = torch.arange(self._size)
        y, x = line[:, None] - at[0], line[None, :] - at[1]
        image = drawn(SHAPES[shape], x, y, radius).float()
        image = image + 0.4 * torch.randn(self._size, self._size, generator=draw)
        if self._augment:
            image = image.flip(-1) if torch.rand(()) < 0.5 else image
            image = image.roll(tuple(torch.randint(-2, 3, (2,)).tolist()), (0, 1))
        return image[None], shape


def drawn(shape, x, y, radius):
    away = (x**2 + y**2).sqrt()
    if shape == "disc":
        return away <= radius
    if shape == "ring":
        return (away - radius * 0.8).abs() <= 1.2
    inside = (x.abs() <= radius) & (y.abs() <= radius)
    if shape == "square":
        return inside & (torch.maximum(x.abs(), y.abs()) <= radius * 0.8)
    return inside & ((x.abs() <= 1.2) | (y.abs() <= 1.2))
