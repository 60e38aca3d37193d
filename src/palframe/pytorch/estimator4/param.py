"""Parameters."""

from shoal.compat.topspin.param import ParamBase4 as ParamBase  # noqa: F401
from shoal.compat.topspin.param import ParameterRange  # noqa: F401
