"""Regularizers based on changes of a model's output: VAT, R-Drop and SMART. Each is a term to add to the loss.

They return a mean over samples like other losses, so weighting by samples (`true_gradient`) applies to them too.
"""

from __future__ import annotations

from shoal.train.regularize.rdrop import rdrop_loss, rdrop_step
from shoal.train.regularize.smart import smart_loss
from shoal.train.regularize.vat import vat_loss

__all__ = ["rdrop_loss", "rdrop_step", "smart_loss", "vat_loss"]
