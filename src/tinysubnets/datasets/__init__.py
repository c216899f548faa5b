"""Data sets by name, as decoded uint8 arrays that are memory-mapped from a cache.

>>> from tinysubnets.datasets.loaders import load      # doctest: +SKIP
>>> load("cifar100", "train").inputs.shape             # doctest: +SKIP
(50000, 3, 32, 32)
"""
