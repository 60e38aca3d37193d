"""`get_batch_data` of this kind of dataset."""

from shoal.compat.topspin.datasets import parse_feat_folder  # noqa: F401
from shoal.compat.topspin.datasets import variable_get_batch_data as get_batch_data  # noqa: F401
