"""The learned model: banks of values, subnets of tasks, the store of both, and what it weighs."""
