"""The machine pool: adding machines by SSH or by a join command, checks, supervision, the listener for agents."""
