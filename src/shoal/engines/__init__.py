"""Who starts agents where. An engine is only a hint about its agents: what they report themselves is the truth."""
