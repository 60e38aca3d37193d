"""Files of records."""

from shoal.compat.topspin.datasets import BinDataset  # noqa: F401
from shoal.compat.topspin.datasets import bindataset_get_batch_data as get_batch_data  # noqa: F401
