"""Any network, masked: its architecture as code, masks by top-k, codebooks, modules to train."""

# The most that a difference of low rank may have. Here, where settings find it without torch.
MAX_RANK = 64
