"""Old name of `shoal.agent.lease.ssh_server`, kept because jobs created by version 0.1 store it as their entry."""

from runpy import run_module

if __name__ == "__main__":
    run_module("shoal.agent.lease.ssh_server", run_name="__main__")
