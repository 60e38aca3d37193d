"""The queue for people: its order, why a job waits, quotas."""
