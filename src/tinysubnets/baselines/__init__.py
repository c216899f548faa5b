"""Every other method, each after its paper: dense ones on one base, masked ones beside them."""
