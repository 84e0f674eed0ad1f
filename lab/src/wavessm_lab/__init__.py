"""What it takes to check the paper with `wavessm`: generated tasks, sweeps, studies, figures, report, explorer.

The lab depends on the library, never the other way round. Its commands (`wavessm sweep | figures | report | explore`,
`wavessm data generate`) and tasks (window copying, the Long Range Arena) join the command line through entry points.
"""

__version__ = "0.1.0"
