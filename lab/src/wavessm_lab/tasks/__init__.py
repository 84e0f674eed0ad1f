"""Tasks of the paper: windows in noise, the Long Range Arena (a file for each set), tuned settings of its forecasts."""
