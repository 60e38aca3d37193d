"""A real server under random faults: operations and faults are recorded, and a checker compares the end with the record.

`world.py` is the server on its own small disk, `workload.py` what clients do, `faults.py` what goes wrong, `history.py` the record,
`observe.py` what is found at the end, `checker.py` the comparison, `report.py` the table. `./scripts/soak --nemesis` runs it.
"""
