"""One run on several workers: Ray Train starts them (`ray_train`); what they tell each other is trainer.distributed.

Nothing here imports ray until a parallel run starts, and nothing but this package knows of it.
"""
