"""Engines start agents on machines; `kinds` finds those that are installed. What an engine knows of an agent is only a hint; the agent's own reports decide."""
