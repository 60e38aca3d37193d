"""Routes: authorise, one service call, return. No SQL here."""
