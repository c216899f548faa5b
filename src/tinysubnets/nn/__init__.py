"""Any network, masked: its architecture as code, masks by top-k, codebooks, modules to train."""
