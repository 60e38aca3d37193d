"""As scripts import it."""

from shoal.compat.topspin.regularizers import kl_divergence_with_logit, vat_adversarial_loss  # noqa: F401
