"""One run on several workers: what they tell each other (`team`), and Ray Train, which starts them (`ray_train`).

Nothing here imports ray until a parallel run starts, and nothing but this package knows of it.
"""
