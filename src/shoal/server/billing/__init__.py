"""Usage and cost: the ledger, budgets, prices and quotes."""
