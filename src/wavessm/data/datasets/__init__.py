"""Published data sets, one file each, and your own files."""
