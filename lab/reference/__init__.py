"""Training steps of a decoder on one device in float64 NumPy, as a textbook has them: what the lab's sharded steps must
come to.

Nothing of `lab.programs` but the sizes in `DecoderShape`, so that no fault of theirs can be a fault of both: the
forward pass is written anew, with masks and routing by plain loops; so is the backward pass, by hand; and weights
follow from the whole history of gradients by one formula. No sharding, no micro-batches, no recomputation.
"""
