"""Old name of `shoal.agent.workers.interactive`, kept because jobs created by version 0.1 store it as their entry."""

from runpy import run_module

if __name__ == "__main__":
    run_module("shoal.agent.workers.interactive", run_name="__main__")
