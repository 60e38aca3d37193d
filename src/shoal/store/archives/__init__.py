"""Safe unpacking of untrusted zip and tar archives."""
