"""Learners: objects that learn tasks one after the other."""
