"""Training one task in visible steps: settings, optimizers, the loop, CUDA graphs, evaluation."""
