"""Pages: authorise, one service call, render. No SQL here."""
