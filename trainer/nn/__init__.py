"""What is learned: augmented views, the encoder, the negative metric, and the sparse products below them."""
