"""The studies and figures of the paper, each a command: `python -m wavessm_lab.studies.NAME --out DIR`."""
