"""The sections of a training spec, one file each; `trainer.config` makes one document of them. Free of torch."""
