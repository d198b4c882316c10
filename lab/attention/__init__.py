"""Attention as kernels: the whole on one device, blocks of it that merge, and blocks that go round."""
