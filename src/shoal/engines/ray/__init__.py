"""The Ray engine: agents on many machines. Ray carries the commands to start and end them, and reports which machines are up.

`head` runs Ray's head on the server's machine, `daemon` keeps Ray running on each machine, `driver` is the only program that
uses Ray's API (no other module imports Ray), and `engine` is the part inside the server.
"""
