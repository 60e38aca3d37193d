"""`swarm list` and `swarm inspect` show the same numbers of a swarm."""

from __future__ import annotations

import pytest

from shoal.cli.swarm.page import SWARM_COLUMNS, samples_of
from shoal.core.schema import utcnow
from shoal.core.swarm_views import SwarmSummary


@pytest.mark.parametrize(("samples", "total", "shown"), [(32, 320, 320), (32, None, 32), (None, None, None)])
def test_the_samples_in_the_list_are_those_of_inspect(
    samples: int | None, total: int | None, shown: int | None
) -> None:
    swarm = SwarmSummary(
        id="swarm_1",
        name="gpt",
        status="running",
        public=False,
        peers=2,
        round=10,
        samples=samples,
        total_samples=total,
        loss=0.5,
        created_at=utcnow(),
    )
    (column,) = (c for c in SWARM_COLUMNS if c.title == "SAMPLES")
    assert column.value(swarm) == samples_of(swarm) == shown
