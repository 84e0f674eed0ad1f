"""Studies and figures made from the parts above, each a command: `python -m wavessm.lab.NAME --out DIR`."""
