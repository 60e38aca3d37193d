"""Feature files."""

from shoal.compat.topspin.datasets import own_batches as get_batch_data_helper  # noqa: F401
from shoal.compat.topspin.datasets import parse_feat_folder  # noqa: F401
