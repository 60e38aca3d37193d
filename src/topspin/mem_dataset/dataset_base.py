"""The base of datasets."""

from shoal.compat.topspin.datasets import DatasetBase, get_batch_data_helper  # noqa: F401
