"""Regularizers that look at how much a model's output moves: VAT, R-Drop, SMART. Each is a term to add to the loss.

They return a mean over samples like other losses, so weighing by samples (`true_gradient`) holds for them too.
"""

from __future__ import annotations

from shoal.train.regularize.rdrop import rdrop_loss, rdrop_step
from shoal.train.regularize.smart import smart_loss
from shoal.train.regularize.vat import vat_loss

__all__ = ["rdrop_loss", "rdrop_step", "smart_loss", "vat_loss"]
