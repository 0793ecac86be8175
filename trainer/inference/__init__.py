"""What can be asked of a published version beyond its rows: vectors of new nodes, classes from a few labels.

A process without torch, such as the API's, asks another (`python -m trainer.inference`) in frames: a child of its own,
or an encoder elsewhere, which listens on the network.
"""
