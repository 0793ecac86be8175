"""Files that survive a crash and arrays larger than memory: atomic writes, whole directories, .npy, memory maps."""
