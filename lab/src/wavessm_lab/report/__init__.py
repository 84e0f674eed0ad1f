"""Results beside the paper's: runs as a CSV, the paper's tables as data, and what the two say of each other."""
