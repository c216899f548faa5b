"""Byte codecs: bit packing, Huffman, Rice, masks and codes; arrays in, bytes out, and back.

Every reader here takes arbitrary bytes, and either returns an array of the size asked for or raises
`DamageError`, in time and memory bounded by that size and by the bytes given.
"""
