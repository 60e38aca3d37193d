"""The outbox: records kept on disk until the server has them, and the thread that sends them."""
