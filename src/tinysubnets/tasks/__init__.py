"""What a learner sees of data: tasks, their checks and normalization, batches, augmentation."""
