"""Charts around the metrics: marks on curves, notes at steps, definitions from scripts, layouts."""
