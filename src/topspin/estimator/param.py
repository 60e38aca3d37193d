"""Parameters."""

from shoal.compat.topspin.param import (
    ParamBase,  # noqa: F401
    ParameterRange,  # noqa: F401
)
