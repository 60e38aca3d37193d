"""The console: pages rendered here, with the same policies and services as the API. Nothing in it is reachable only by browser."""
