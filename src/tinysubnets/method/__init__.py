"""TinySubNets itself: its settings, Algorithm 1 (learner), banks, compression, post-pruning."""
