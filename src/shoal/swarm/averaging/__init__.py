"""Averaging between peers: the exchange of a round, the robust average and the encoding of tensors.

Why it is safe: averagers run in a process of their own, on one event loop. Their state changes only between two `await`s
there, so they need no locks. The training process reaches them through hivemind's pipe, one shared flag (`_robust`) and
shared tensors that are read and written under hivemind's lock (`get_tensors`). If the averager's process dies, the training
process gets an error or a time-out and finishes the round without an exchange.
"""
