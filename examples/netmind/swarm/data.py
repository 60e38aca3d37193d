"""The tokenized dataset, as `make_data.py` leaves it on disk."""

from datasets import load_from_disk


def get_data(args):
    return load_from_disk(args.dataset_path)
