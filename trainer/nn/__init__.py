"""What is learned and how it is contrasted: views, encoder, negative metric, tiled loss."""
