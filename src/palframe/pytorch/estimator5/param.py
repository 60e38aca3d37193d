"""Parameters."""

from shoal.compat.topspin.param import ParamBase5 as ParamBase  # noqa: F401
from shoal.compat.topspin.param import ParameterRange  # noqa: F401
