"""Jobs: submission, attempts, reports of their agents, streams, events, shells inside them."""
