"""A key-value store within one process."""


class Store:
    """The methods of a torch store that Agreement uses."""

    def __init__(self):
        self.items = {}

    def set(self, key, value):
        self.items[key] = value.encode()

    def get(self, key):
        return self.items[key]

    def add(self, key, amount):
        self.items[key] = self.items.get(key, 0) + amount
        return self.items[key]

    def check(self, keys):
        return all(k in self.items for k in keys)
